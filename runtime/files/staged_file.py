"""Folder of a staged model, some operations of it uncompiled.

plan.json              the cuts, the types, and the folder of each part; versioned, with digests of itself and all files
graph.onnx             the model without its weights: foreign operations run from it, parts for other shapes derive
weights.safetensors    the weights, and values that a part was specialised for
parts/0000/*           the plan of every part, a folder as for any plan
specs/*                the user's declarations
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen
from safetensors.numpy import save as save_tensors

from ...ir import Array, PlanError, Target, TensorType
from ..plan import Plan, cuts_version
from .plan_document import PartRecord, StagedDocument, write_document
from .plan_file import load_plan
from .plan_writer import plan_files, write_folder
from .weights import WEIGHTS, StoredWeights, Weights


@frozen
class PlannedPart:
    """Plan of a part, and its key: nodes, results, types and values.

    `types` and `known` are those of the tensors that it reads.
    """

    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    known: Mapping[str, Array] = field(eq=False, repr=False)
    plan: Plan


@frozen
class StagedRecord:
    """Content of the folder.

    `graph` is the serialised model without its weights.
    """

    name: str
    target: Target
    types: Mapping[str, TensorType]
    graph: bytes = field(repr=False)
    opsets: Mapping[str, int]
    weights: Mapping[str, Array] = field(eq=False, repr=False)
    opaque: tuple[str, ...]
    functions: tuple[str, ...]
    specs: Mapping[str, str]
    parts: tuple[PlannedPart, ...]


def save_staged(plan: StagedRecord, folder: str | os.PathLike[str]) -> None:
    """Write a plan's folder atomically."""
    weights = Weights({})
    files = {"graph.onnx": plan.graph}
    files |= {f"specs/{number:02}.cuts": text.encode() for number, text in enumerate(plan.specs.values())}
    records = []
    for number, part in enumerate(plan.parts):
        place = f"parts/{number:04}"
        files |= {f"{place}/{name}": content for name, content in plan_files(part.plan).items()}
        known = {name: weights.add(array) for name, array in part.known.items()}
        records.append(PartRecord(part.nodes, part.outputs, dict(part.types), known, place))
    keys = {name: weights.add(array) for name, array in plan.weights.items()}
    files[WEIGHTS] = save_tensors(weights.arrays)
    document = StagedDocument(
        cuts_version(), plan.name, plan.target, dict(plan.types), dict(plan.opsets), plan.opaque, plan.functions, keys,
        tuple(plan.specs), tuple(records),
        {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )  # fmt: skip
    write_folder(Path(folder), files | {"plan.json": write_document(document)})


def staged_record(root: Path, document: StagedDocument, files: Mapping[str, bytes]) -> StagedRecord:
    """Return the content of a folder's checked files."""
    weights = StoredWeights(files[WEIGHTS])
    return StagedRecord(
        document.name,
        document.target,
        document.types,
        files["graph.onnx"],
        document.opsets,
        {name: weights[key] for name, key in document.weights.items()},
        document.opaque,
        document.functions,
        {name: files[f"specs/{number:02}.cuts"].decode() for number, name in enumerate(document.specs)},
        tuple(_load_part(root, record, document.files, weights) for record in document.parts),
    )


def _load_part(root: Path, record: PartRecord, files: Mapping[str, str], weights: StoredWeights) -> PlannedPart:
    if f"{record.folder}/plan.json" not in files:
        raise PlanError(f"{root}: the plan has no part {record.folder!r}", hint="write the plan again")
    known = {name: weights[key] for name, key in record.known.items()}
    return PlannedPart(record.nodes, record.outputs, record.types, known, load_plan(root / record.folder))
