"""Content of plan.json: records, version and digest."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from attrs import field, frozen

from ...ir import (
    Argument,
    Dim,
    DimLayout,
    DType,
    IndexCheck,
    PlanError,
    PrecisionName,
    RepeatedSteps,
    Step,
    Storage,
    SymbolicExtent,
    Target,
    TensorType,
)
from ..memory import Placement
from .json_records import read_record, write_record
from .target_record import complete_target

FORMAT, STAGED_FORMAT, PROGRAM_FORMAT, VERSION = "cuts-plan", "cuts-staged-plan", "cuts-staged-program", 2
DYNAMIC_FORMAT = "cuts-dynamic-plan"


@frozen
class KernelRecord:
    """Kernel without its bulk."""

    name: str
    dialect: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    shared_bytes: int
    dynamic_shared: int
    info: dict[str, Any]
    binary: bool


@frozen
class ModelRecord:
    """Source model: opaque constants, declarations and precision policy.

    Constants are given by their keys in the weights, declarations by name. `orders` has the order of the dims of those
    that are stored as kernels read them.
    """

    constants: dict[str, str]
    specs: tuple[str, ...]
    precision: PrecisionName = "fp32"
    orders: dict[str, tuple[int, ...]] = field(factory=dict)


@frozen
class PlanDocument:
    """Content of plan.json besides format, version and digest."""

    cuts: str
    name: str
    target: Target
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: dict[str, TensorType]
    storages: dict[str, Storage]
    buffers: dict[str, Placement]
    arena: int
    constants: dict[str, str]
    kernels: tuple[KernelRecord, ...]
    steps: tuple[Step, ...]
    groups: tuple[dict[str, Any], ...]
    model: ModelRecord | None
    files: dict[str, str]
    checks: tuple[IndexCheck, ...] = ()
    loops: tuple[RepeatedSteps, ...] = ()
    branched: bool = False


@frozen
class PartRecord:
    """Compiled part of a staged model.

    It has its nodes and results, and the types and values that it is specialised for; its own plan is in a folder.
    """

    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    types: dict[str, TensorType]
    known: dict[str, str]
    folder: str


@frozen
class StagedDocument:
    """Content of a staged model's plan.json.

    `functions` are the operations that the caller must give when it is opened.
    """

    cuts: str
    name: str
    target: Target
    types: dict[str, TensorType]
    opsets: dict[str, int]
    opaque: tuple[str, ...]
    functions: tuple[str, ...]
    weights: dict[str, str]
    specs: tuple[str, ...]
    parts: tuple[PartRecord, ...]
    files: dict[str, str]


@frozen
class StageRecord:
    """Stage of a program: value numbers, and the place of its file."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]
    place: str
    signature: dict[str, Any] | None


@frozen
class ProgramDocument:
    """Content of plan.json of an exported program in stages."""

    cuts: str
    name: str
    target: Target
    types: dict[str, TensorType]
    arguments: tuple[tuple[str, str], ...]
    results: tuple[dict[str, Any], ...]
    state: dict[str, str]
    stages: tuple[StageRecord, ...]
    foreign: dict[str, tuple[str, ...]]
    warning: str
    files: dict[str, str]


@frozen
class BucketRecord:
    """Bucket of a plan for a range of sizes, with its files."""

    sizes: dict[str, int]
    scalars: dict[str, str]
    layouts: dict[str, tuple[DimLayout, ...]]
    fixed: dict[str, SymbolicExtent]
    files: dict[str, str]
    counts: dict[str, str] = field(factory=dict)


@frozen
class DynamicDocument:
    """Content of plan.json of a plan for a range of sizes."""

    cuts: str
    name: str
    target: Target
    dims: tuple[Dim, ...]
    buckets: tuple[BucketRecord, ...]
    files: dict[str, str]


Document: TypeAlias = PlanDocument | StagedDocument | ProgramDocument | DynamicDocument
#: Classes of documents by the name of their format.
_FORMATS: dict[str, type[PlanDocument] | type[StagedDocument] | type[ProgramDocument] | type[DynamicDocument]] = {
    FORMAT: PlanDocument,
    DYNAMIC_FORMAT: DynamicDocument,
    STAGED_FORMAT: StagedDocument,
    PROGRAM_FORMAT: ProgramDocument,
}


def plain(value: object) -> Any:
    """Return a JSON value for a report value.

    NumPy scalars become numbers, tuples lists, other values their text.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def write_document(document: Document) -> bytes:
    """Return the content of plan.json, with an entry a line."""
    body = write_record(document)
    name = next(name for name, kind in _FORMATS.items() if isinstance(document, kind))
    head = {"format": name, "version": VERSION, "digest": _digest(body)}
    return (_join("{}", (f" {_text(key)}: {_entries(value)}" for key, value in (head | body).items())) + "\n").encode()


_text = json.JSONEncoder(allow_nan=False).encode


def _entries(value: object) -> str:
    """Return a value as JSON, an entry a line.

    Python indents slowly: its encoder in C does not.
    """
    if isinstance(value, Mapping):
        return _join("{}", (f"  {_text(str(key))}: {_text(item)}" for key, item in value.items()))
    return _join("[]", (f"  {_text(item)}" for item in value)) if isinstance(value, (list, tuple)) else _text(value)


def _join(brackets: str, entries: Iterable[str]) -> str:
    return brackets[0] + "\n" + ",\n".join(entries) + "\n" + brackets[1]


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_document(root: Path) -> Document:
    """Read and check the plan.json of a folder.

    Raises `PlanError` where there is none, or it is damaged or of another version.
    """
    return parse_document(_content(root), root / "plan.json")


def parse_document(content: bytes, path: Path) -> Document:
    """Read and check the content of plan.json; `path` is for errors.

    Raises `PlanError` where it is damaged or of another version.
    """
    name, data = _named_data(content, path)
    if (version := data.pop("version", None)) != VERSION:
        raise PlanError(f"{path} has version {version!r}, this cuts reads {VERSION}", hint="write the plan again")
    if data.pop("digest", None) != _digest(data):
        raise PlanError(f"{path} is damaged: its digest does not fit its content", hint="write the plan again")
    try:
        if name == FORMAT:
            _make_tables_constants(data)
        data["target"] = complete_target(data["target"])
        found: Document = read_record(data, _FORMATS[name])
        return found
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PlanError(f"{path} is not a plan of this version: {error}", hint="write the plan again") from error


def document_type(folder: str | os.PathLike[str]) -> type[Document]:
    """Return the class of a folder's plan.json by its format.

    Raises `PlanError` where there is none, or it has no known format.
    """
    root = Path(folder)
    name, _ = _named_data(_content(root), root / "plan.json")
    return _FORMATS[name]


def _content(root: Path) -> bytes:
    path = root / "plan.json"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        reason = "it has no plan.json" if root.exists() else "there is no such file or folder"
        raise PlanError(f"{root} is no plan: {reason}", hint="write one with: cuts compile MODEL -o PLAN") from None
    except (OSError, NotADirectoryError) as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error


def _named_data(content: bytes, path: Path) -> tuple[str, dict[str, Any]]:
    """Return the format of plan.json, and all else."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise PlanError(f"{path} is damaged: it is not JSON", hint="write the plan again") from None
    name = data.pop("format", None) if isinstance(data, dict) else None
    if name not in _FORMATS:
        raise PlanError(f"{path} is no plan of cuts: expected the format '{FORMAT}'")
    return name, data


def _make_tables_constants(data: dict[str, Any]) -> None:
    """Let the address tables of kernels, which earlier versions had, be constants of the plan."""
    for number, kernel in enumerate(data["kernels"]):
        places, tables = kernel.pop("places", {}), kernel.pop("tables", {})
        arguments = [argument.pop("table", False) for argument in kernel["arguments"]]
        for name, key in tables.items():
            constant, place = f"{name} of kernel {number}", places[name]
            data["types"][constant] = {"dtype": DType.I32.value, "shape": [place["nbytes"] // DType.I32.size]}
            data["storages"][constant] = {"buffer": constant, "offset": 0, "strides": [1]}
            data["buffers"][constant], data["constants"][constant] = place, key
        for step in (s for s in data["steps"] if s["kernel"] == number and any(arguments)):
            bound = zip(step["tensors"], arguments, strict=True)
            step["tensors"] = [f"{t} of kernel {number}" if is_table else t for t, is_table in bound]
