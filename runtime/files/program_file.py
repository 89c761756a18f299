"""Folder of an exported program in stages, some of them PyTorch's.

plan.json              the stages, the names of the ends; versioned, with digests of itself and all files
weights.safetensors    the state
parts/0000/*           the plan of every compiled stage, a folder as for any plan
foreign/0001.pt2       PyTorch's stages, as programs of torch.export with their weights
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen
from safetensors.numpy import save as save_tensors

from ...ir import Array, Target, TensorType
from ..plan import Plan, cuts_version
from .plan_document import ProgramDocument, StageRecord, write_document
from .plan_file import load_plan
from .plan_writer import plan_files, write_folder
from .weights import WEIGHTS, StoredWeights, Weights


@frozen
class PlannedStage:
    """Stage of a program: value numbers, and a plan or PyTorch's archive."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]
    plan: Plan | None = None
    signature: Mapping[str, Any] | None = None
    archive: bytes | None = field(default=None, repr=False)


@frozen
class ProgramRecord:
    """Content of the folder.

    Arguments and results have a kind and a name, results a value's number or a constant too.
    """

    name: str
    target: Target
    types: Mapping[str, TensorType]
    arguments: tuple[tuple[str, str], ...]
    results: tuple[Mapping[str, Any], ...]
    state: Mapping[str, Array] = field(eq=False, repr=False)
    stages: tuple[PlannedStage, ...]
    foreign: Mapping[str, tuple[str, ...]]
    warning: str


def save_program(record: ProgramRecord, folder: str | os.PathLike[str]) -> None:
    """Write a program's folder atomically."""
    files: dict[str, bytes] = {}
    weights = Weights({})
    stages = []
    for number, stage in enumerate(record.stages):
        if stage.plan is not None:
            place = f"parts/{number:04}"
            files |= {f"{place}/{name}": content for name, content in plan_files(stage.plan).items()}
        else:
            place = f"foreign/{number:04}.pt2"
            files[place] = stage.archive or b""
        signature = None if stage.signature is None else dict(stage.signature)
        stages.append(StageRecord(stage.inputs, stage.outputs, stage.released, place, signature))
    state = {name: weights.add(array) for name, array in record.state.items()}
    files[WEIGHTS] = save_tensors(weights.arrays)
    document = ProgramDocument(
        cuts_version(), record.name, record.target, dict(record.types), record.arguments,
        tuple(dict(result) for result in record.results), state, tuple(stages), dict(record.foreign), record.warning,
        {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )  # fmt: skip
    write_folder(Path(folder), files | {"plan.json": write_document(document)})


def program_record(root: Path, document: ProgramDocument, files: Mapping[str, bytes]) -> ProgramRecord:
    """Return the content of a folder's checked files."""
    weights = StoredWeights(files[WEIGHTS])
    return ProgramRecord(
        document.name,
        document.target,
        document.types,
        document.arguments,
        document.results,
        {name: weights[key] for name, key in document.state.items()},
        tuple(_stage(root, stage, files) for stage in document.stages),
        document.foreign,
        document.warning,
    )


def _stage(root: Path, stage: StageRecord, files: Mapping[str, bytes]) -> PlannedStage:
    ends = stage.inputs, stage.outputs, stage.released
    if stage.signature is None:
        return PlannedStage(*ends, archive=files[stage.place])
    _ = files[f"{stage.place}/plan.json"]
    return PlannedStage(*ends, load_plan(root / stage.place), stage.signature)
