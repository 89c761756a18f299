"""Profiles of package and user: kernels and times of layers.

`NAME-layers.csv.xz` has a row for each layer: the set it belongs to (`edges`, `general`, `other`: for training;
`held`, `sweep`: for evaluation only; `timed`: the same with cuDNN timing its algorithms), its shape, the kernels that
ran, their grids and times, cold and warm. `NAME-networks.csv.xz` has the layers of whole networks.
`NAME.json` describes the machine. `latency/profiling/tables.py` writes them. Profiles that a user makes are in a folder
of their own and count before the package's.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import platformdirs
from attrs import fields, frozen

from ..ir import UsageError
from .convolution import Convolutions, Floats, Ints

Strings: TypeAlias = npt.NDArray[np.str_]
Mask: TypeAlias = npt.NDArray[np.bool_]
Objects: TypeAlias = npt.NDArray[np.object_]
#: Networks that the gap between kernels is fitted on; nothing is fitted on the others.
GAP_NETWORKS = ("resnet50", "inception_v3")
#: Sets that models are trained on.
TRAINING = ("edges", "general")


@frozen(eq=False)
class Samples:
    """Measured convolutions: origin, kernels (`choices`) and microseconds.

    A choice names the kernels that ran one after another. `blocks`, `cold_parts` and `warm_parts` have an array for
    each convolution with a value for each of its kernels.
    """

    layers: Convolutions
    kinds: Strings
    cases: Strings
    choices: Strings
    blocks: Objects
    cold_parts: Objects
    warm_parts: Objects
    cold: Floats
    warm: Floats

    def __len__(self) -> int:
        return len(self.layers)

    def where(self, mask: Mask | Ints) -> Samples:
        """Return the samples of a mask, or of row numbers."""
        return Samples(*(getattr(self, each.name)[mask] for each in fields(Samples)))

    def of(self, *kinds: str) -> Samples:
        """Return the samples of some sets."""
        return self.where(np.isin(self.kinds, kinds))

    @property
    def groups(self) -> Strings:
        """Labels of samples that must stay together when samples are split.

        A label is a case with a number of input channels; in `general` each sample has its own.
        """
        return np.array([f"{case}/{row[1]}" for case, row in zip(self.cases, self.layers.table, strict=True)])

    def us(self, state: str) -> Floats:
        """Return the microseconds of a cache state.

        The cache is empty (`cold`), or has the input just written (`warm`).
        """
        return self.cold if state == "cold" else self.warm

    def parts(self, state: str) -> Objects:
        """Return the microseconds of each kernel."""
        return self.cold_parts if state == "cold" else self.warm_parts


@frozen(eq=False)
class SimpleSamples:
    """Measured operations of one kind that are no convolutions.

    They have shapes as in the task, and microseconds.
    """

    shapes: tuple[tuple[int, ...], ...]
    cold: Floats
    warm: Floats


@frozen(eq=False)
class Profile:
    """Measurements of one machine."""

    name: str
    facts: Mapping[str, Any]
    kernels: Mapping[int, str]

    @cached_property
    def rows(self) -> tuple[Mapping[str, str], ...]:
        """All measurements, a row for each layer.

        They are read on first use.
        """
        return tuple(read_table(f"{self.name}-layers"))

    @cached_property
    def digest(self) -> str:
        """A digest of all tables of the machine."""
        found = hashlib.sha256()
        for name in known_tables():
            if name.partition("-")[0] == self.name:
                found.update(name.encode() + table_bytes(name))
        return found.hexdigest()

    def convolutions(self, precision: str, depthwise: bool = False) -> Samples:
        """Return the convolutions of one precision, or its depthwise ones."""
        rows = [row for row in self.rows if row["op"] == "conv2d" and row["precision"] == precision]
        return _samples([row for row in rows if (row["case"] == "depthwise") == depthwise])

    def products(self, precision: str) -> Samples:
        """Return matrix products as convolutions of images of one pixel.

        Their second operand is the weights.
        """
        rows = [row for row in self.rows if row["op"] == "linear" and row["precision"] == precision]
        return _samples([{**row, "shape": _one_pixel(row["shape"])} for row in rows])

    def simple(self, op: str, precision: str = "fp32") -> SimpleSamples:
        """Return the measurements of another operation."""
        rows = [row for row in self.rows if row["op"] == op and row["precision"] == precision]
        shapes = tuple(_ints(row["shape"]) for row in rows)
        return SimpleSamples(shapes, _floats(rows, "cold"), _floats(rows, "warm"))

    def kernel_names(self, choice: str) -> tuple[str, ...]:
        """Return the full names of the kernels of a choice."""
        return tuple(self.kernels[int(part.partition(".")[0])] for part in choice.split("+"))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def _one_pixel(shape: str) -> str:
    rows, inputs, outputs = shape.split("x")
    return f"{rows}x{inputs}x1x1x{outputs}x1x1x1x1x0x0x1x1"


def _floats(rows: Sequence[Mapping[str, str]], name: str) -> Floats:
    return np.array([float(row[name]) for row in rows])


def _samples(rows: Sequence[Mapping[str, str]]) -> Samples:
    return Samples(
        Convolutions([_ints(row["shape"]) for row in rows]),
        np.array([row["kind"] for row in rows], np.str_),
        np.array([row["case"] for row in rows], np.str_),
        np.array([number_repeats(row["kernels"]) for row in rows], np.str_),
        _nested_arrays(rows, "blocks"),
        _nested_arrays(rows, "cold_each"),
        _nested_arrays(rows, "warm_each"),
        _floats(rows, "cold"),
        _floats(rows, "warm"),
    )


def number_repeats(kernels: str) -> str:
    """Number the kernels of a choice that run twice.

    `7+9+7` becomes `7.0+9.0+7.1`, since each has its own work to do.
    """
    seen: Counter[str] = Counter()
    found = []
    for kernel in kernels.split("+"):
        found.append(f"{kernel}.{seen[kernel]}")
        seen[kernel] += 1
    return "+".join(found)


def _nested_arrays(rows: Sequence[Mapping[str, str]], name: str) -> Objects:
    found = np.empty(len(rows), object)
    found[:] = [np.array([float(part) for part in row[name].split("+")]) for row in rows]
    return found


def known_profiles() -> tuple[str, ...]:
    """Return the names of the machines that were profiled."""
    return tuple(name.removesuffix("-layers") for name in known_tables() if name.endswith("-layers"))


def user_folder() -> Path:
    """Return the folder of the profiles that `cuts latency profile` makes."""
    return Path(platformdirs.user_data_dir("cuts")) / "profiles"


def _folders() -> tuple[Traversable, ...]:
    return user_folder(), resources.files(__package__).joinpath("data")


def packaged_profiles() -> tuple[str, ...]:
    """Return the names of the profiles in the package."""
    folder = resources.files(__package__).joinpath("data")
    suffix = "-layers.csv.xz"
    return tuple(sorted(f.name.removesuffix(suffix) for f in folder.iterdir() if f.name.endswith(suffix)))


def known_tables() -> tuple[str, ...]:
    """Return the names of the compressed tables."""
    files = [file for folder in _folders() if folder.is_dir() for file in folder.iterdir()]
    return tuple(sorted({f.name.removesuffix(".csv.xz") for f in files if f.name.endswith(".csv.xz")}))


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a compressed table."""
    return list(csv.DictReader(io.StringIO(lzma.decompress(table_bytes(name)).decode())))


def table_bytes(name: str) -> bytes:
    """Return a compressed table."""
    return data_file(f"{name}.csv.xz").read_bytes()


def data_file(name: str) -> Traversable:
    """Return a file of a profile: the user's, else the package's."""
    user, packaged = (folder.joinpath(name) for folder in _folders())
    return user if user.is_file() else packaged


@cache
def load_profile(name: str) -> Profile:
    """Return the measurements of a machine.

    Raises `UsageError` for one that was not profiled.
    """
    if name not in known_profiles():
        raise UsageError(
            f"no layers were profiled on '{name}'", hint=f"profiled are {', '.join(known_profiles()) or 'none'}"
        )
    facts = json.loads(data_file(f"{name}.json").read_text(encoding="utf-8"))
    kernels = {int(row["number"]): row["name"] for row in read_table(f"{name}-kernels")}
    return Profile(name, facts, kernels)


def training_samples(samples: Samples) -> Samples:
    """Return the samples that models may be fitted to."""
    return samples.of(*TRAINING)
