"""The machines we know, described by data (`targets/*.toml`), and how a name finds a description."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import cattrs
from attrs import evolve, frozen

from ..ir import Target, UsageError, quote

_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@frozen
class Description:
    """A described machine and the short names it answers to besides its architecture."""

    target: Target
    aliases: tuple[str, ...]


@cache
def descriptions() -> tuple[Description, ...]:
    """Read every description once, in file order."""
    folder = files(__package__) / "targets"
    found = []
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".toml"):
            data = tomllib.loads(entry.read_text(encoding="utf-8"))
            aliases = tuple(data.pop("aliases"))
            data["atoms"] = tuple(data.get("atoms", {}).items())
            found.append(Description(_CONVERTER.structure(data, Target), aliases))
    return tuple(found)


def known_targets() -> tuple[str, ...]:
    """List the names of the described machines, one each; the one that is the default comes first."""
    return tuple(sorted(map(_name, descriptions()), key=lambda name: name != "opencl"))


def target_aliases() -> dict[str, str]:
    """Return what other names `find_target` accepts, and the target that each stands for."""
    first = next(_name(item) for item in descriptions() if item.target.dialect == "cuda")
    aliases = {"cuda": f"the GPU of this machine, {first} without one", "cuda:device": "the GPU of this machine"}
    return aliases | {f"{i.target.dialect}:{alias}": _name(i) for i in descriptions() for alias in i.aliases}


def _name(item: Description) -> str:
    return f"{item.target.dialect}:{item.target.arch}" if item.target.arch else item.target.dialect


def described_target(name: str) -> Target:
    """Return the described target called `name`: a dialect, or `dialect:architecture`, or `dialect:alias`.

    An `sm_NN` without a description takes the numbers of its major architecture's. Raises `UsageError` for any other
    unknown name.
    """
    dialect, _, key = name.strip().lower().partition(":")
    matching = [item for item in descriptions() if item.target.dialect == dialect]
    for item in matching:
        if key in ("", item.target.arch, *item.aliases):
            return item.target
    if dialect == "cuda" and (relative := _same_generation(key)) is not None:
        return relative
    raise UsageError(
        f"unknown target {quote(name)}", hint=f"targets are: {', '.join((*known_targets(), *target_aliases()))}"
    )


def _same_generation(key: str) -> Target | None:
    """Return the description for another `sm_NN` of a described major architecture, under the name asked for.

    The numbers of a relative steer the choice of parameters; limits of one major architecture differ too little to make
    code illegal beyond what compilation reports.
    """
    digits = key.removeprefix("sm_").rstrip("af")
    if not key.startswith("sm_") or not digits.isdigit() or len(digits) < 2:
        return None
    for item in descriptions():
        if item.target.dialect == "cuda" and item.target.arch.removeprefix("sm_")[:-1] == digits[:-1]:
            return evolve(item.target, name=f"{key} (numbers of {item.target.name})", arch=key)
    return None
