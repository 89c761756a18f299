"""Extras of the package, and the packages that they lack."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from attrs import frozen

from ..ir import DISTRIBUTION, install_command

#: Purpose of each extra that a user may want.
PURPOSES = {
    "opencl": "kernels on the processor, without a GPU",
    "cuda": "kernels on NVIDIA GPUs, and their binaries on any machine",
    "cuda12": "binaries for architectures before sm_75",
    "pycuda": "kernels on NVIDIA GPUs where the bindings are missing",
    "libraries": "routines of cuBLAS and cuDNN as candidates of a search",
    "onnx": "models of ONNX, and ONNX Runtime to compare with",
    "torch": "models of PyTorch, torch.compile",
    "checkpoints": "quantised decoders of torchao, compressed-tensors and GGUF",
    "cluster": "simulation of plans for clusters",
    "latency": "predicted times",
    "learned": "searches by models that learn",
    "ppo": "searches by a learned policy",
    "distributed": "searches on several hosts",
}
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[\w, -]*)\])?\s*(?P<version>[^;]*)"
    r"(?:;\s*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"])?"
)
_LOWEST = re.compile(r">=\s*(\d[\d.]*)")


@frozen
class Extra:
    """Extra of the package.

    `missing` has the packages that are not installed, or older than it needs.
    """

    name: str
    purpose: str
    installed: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that installs it; empty where nothing is missing."""
        return install_command(self.name) if self.missing else ""


def find_extras() -> tuple[Extra, ...]:
    """Return the state of each extra in this environment."""
    return tuple(_state(name, purpose) for name, purpose in PURPOSES.items())


def _state(extra: str, purpose: str) -> Extra:
    found = dict(_packages(_requirements(), extra))
    installed = tuple(f"{name} {version}" for name, version in found.items() if version)
    return Extra(extra, purpose, installed, tuple(name for name, version in found.items() if not version))


def _requirements() -> list[str]:
    """Return the requirements of the package: those of its installation, else of its checkout."""
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        path = Path(__file__).parents[1] / "pyproject.toml"
    if not path.is_file():
        return []
    extras = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return [f"{text}; extra == '{name}'" for name, texts in extras.items() for text in texts]


def _packages(requirements: Sequence[str], extra: str) -> Iterator[tuple[str, str]]:
    """Yield the packages of an extra with their versions; a version that is missing or too old is empty."""
    for text in requirements:
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None or match["extra"] != extra:
            continue  # of another extra, or of another platform
        further = [name.strip() for name in (match["extras"] or "").split(",") if name.strip()]
        if match["name"] == DISTRIBUTION:
            for name in further:
                yield from _packages(requirements, name)
            continue
        yield match["name"], _version(match["name"], match["version"])
        for name in further:
            yield from _packages(_required_by(match["name"]), name)


def _required_by(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def _version(package: str, wanted: str) -> str:
    """Return the installed version of a package; empty without one, or where a newer one is wanted."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
    lowest = _LOWEST.search(wanted)
    return version if lowest is None or _numbers(version) >= _numbers(lowest[1]) else ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
