"""Described machines (`targets/*.toml`), and their lookup by name."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import pairwise

import cattrs
from attrs import evolve, frozen

from ..ir import Target, UsageError, quote

_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


#: Machines whose coefficients others have that list none.
_COEFFICIENTS = {"bounds": "h200", "costs": "h200", "core_costs": "pocl"}
#: Target of "cuda" on a machine without a GPU.
DEFAULT_CUDA = "cuda:sm_90"


@frozen
class Description:
    """Described machine and its aliases.

    Its architecture's name is among them where it represents all machines of that architecture without a description.
    """

    target: Target
    aliases: tuple[str, ...]

    @property
    def represents(self) -> bool:
        """True where the name of its architecture means this machine."""
        return not self.target.arch or self.target.arch in self.aliases


@cache
def descriptions() -> tuple[Description, ...]:
    """Read every description once, in file order.

    A table of coefficients lists those that differ from the default.
    """
    entries = sorted((files(__package__) / "targets").iterdir(), key=lambda item: item.name)
    tables = {e.name[:-5]: tomllib.loads(e.read_text("utf-8")) for e in entries if e.name.endswith(".toml")}
    found = []
    for data in tables.values():
        costs = {name: tables[machine][name] | data.get(name, {}) for name, machine in _COEFFICIENTS.items()}
        numbers = {name: value for name, value in data.items() if name != "aliases"}
        numbers |= costs | {"atoms": tuple(data.get("atoms", {}).items())}
        found.append(Description(_CONVERTER.structure(numbers, Target), tuple(data["aliases"])))
    return tuple(found)


def known_targets() -> tuple[str, ...]:
    """Return the names of described dialects and architectures, the default first."""
    names = {_name(item) for item in descriptions()}
    return tuple(sorted(names, key=lambda name: (name != "opencl", name)))


def target_aliases() -> dict[str, str]:
    """Return the aliases that `find_target` accepts, with their meanings.

    An alias means a known target, or a machine with figures of its own.
    """
    aliases = {"auto": "the GPU of this machine, opencl without one"}
    aliases |= {
        "cuda": f"the GPU of this machine, {DEFAULT_CUDA} without one",
        "cuda:device": "the GPU of this machine",
    }
    for item in descriptions():
        meaning = _name(item) if item.represents else f"{item.target.name} ({item.target.arch})"
        short = (alias for alias in item.aliases if alias != item.target.arch)
        aliases |= {f"{item.target.dialect}:{alias}": meaning for alias in short}
    return aliases


def _name(item: Description) -> str:
    return f"{item.target.dialect}:{item.target.arch}" if item.target.arch else item.target.dialect


def described_target(name: str) -> Target:
    """Return the described target `name`: a dialect, `dialect:architecture`, or `dialect:alias`.

    An `sm_NN` without a description takes the numbers of the nearest of its major architecture. Raises `UsageError` for
    any other unknown name.
    """
    dialect, _, key = (DEFAULT_CUDA if name.strip().lower() == "cuda" else name.strip().lower()).partition(":")
    for item in descriptions():
        if item.target.dialect == dialect and (key in item.aliases or key == item.target.arch == ""):
            return item.target
    if dialect == "cuda" and (relative := _same_generation(key)) is not None:
        return relative
    known = (*known_targets(), *target_aliases())
    close = [full for full in known if full.endswith(f":{name.strip().lower()}")] or get_close_matches(name, known, 1)
    proposal = f"did you mean {quote(close[0])}? " if close else ""
    raise UsageError(f"unknown target {quote(name)}", hint=f"{proposal}targets are: {', '.join(known)}")


def described_device(device: str, arch: str) -> Target:
    """Return a GPU's description by its driver's name, else its architecture's.

    An alias counts where it is a word of the name, or two in a row ("RTX 4090"). Raises `UsageError` where neither the
    machine nor a relative is described.
    """
    words = re.findall(r"[a-z0-9]+", device.lower())
    known = {*words, *map("".join, pairwise(words))}
    for item in descriptions():
        if item.target.dialect == "cuda" and item.target.arch == arch and known & set(item.aliases):
            return item.target
    return described_target(f"cuda:{arch}")


def _same_generation(key: str) -> Target | None:
    """Return the description for another `sm_NN` of a described major architecture, under the requested name.

    The numbers of a relative steer the choice of parameters; limits of one major architecture differ too little to make
    code illegal in ways that compilation does not report. Of several relatives it is the nearest older one, whose
    instructions a newer one has too.
    """
    digits = key.removeprefix("sm_").rstrip("af")
    if not key.startswith("sm_") or not digits.isdigit() or len(digits) < 2:
        return None
    others = [i.target for i in descriptions() if i.target.dialect == "cuda" and i.represents]
    minors = {int(t.arch[-1]): t for t in others if t.arch.removeprefix("sm_")[:-1] == digits[:-1]}
    if not minors:
        return None
    minor = int(digits[-1])
    nearest = minors[min(minors, key=lambda other: (other > minor, abs(other - minor)))]
    return evolve(nearest, name=f"{key} (numbers of {nearest.name})", arch=key)
