"""Reading of a plan's folder.

    plan.json              everything but the bulk: versioned, with a digest of itself and of every other file
    kernels/0000.cl|.cu    sources, kernels/0000.cubin beside them where they were compiled
    weights.safetensors    constants
    model.txt, specs/*     the graph as it was given, in its text form, and the user's declarations it needs

Digests find damage, not malice: a plan contains code, so load only plans from trusted sources. Weights are mapped, and
the graph is read at its first use: a run needs the constants of kernels only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ...ir import CutsError, KernelFunction, PlanError, quote, source_suffix
from ..plan import Plan, PlannedModel, check_plan
from .plan_document import Document, KernelRecord, PlanDocument, parse_document, read_document
from .stored_graph import GraphText
from .weights import WEIGHTS, StoredWeights, map_weights


def source_path(number: int, dialect: str) -> str:
    """Return the path of a kernel's source in a plan's folder."""
    return f"kernels/{number:04}{source_suffix(dialect)}"


def binary_path(number: int, dialect: str) -> str:
    """Return the path of a kernel's compiled form."""
    return f"kernels/{number:04}{'.cubin' if dialect == 'cuda' else '.bin'}"


def load_plan(folder: str | os.PathLike[str]) -> Plan:
    """Read a plan's folder, checking every digest.

    Raises `PlanError` for a folder that is none, is damaged, or is too new.
    """
    root = Path(folder)
    document = read_document(root)
    files = read_files(root, {name: digest for name, digest in document.files.items() if name != WEIGHTS})
    return _check_and_assemble(root, document, files, open_weights(root, document.files))


def plan_of_files(files: Mapping[str, bytes], name: str) -> Plan:
    """Read a plan from the files of its folder.

    Their digests are checked before; `name` is for errors.

    Raises `PlanError` for files of no plan, or of another version.
    """
    document = parse_document(files.get("plan.json", b""), Path(name) / "plan.json")
    return _check_and_assemble(Path(name), document, files, None)


def _check_and_assemble(
    root: Path, document: Document, files: Mapping[str, bytes], weights: StoredWeights | None
) -> Plan:
    if not isinstance(document, PlanDocument):
        raise PlanError(f"{root} is the plan of a model in stages", hint="open it with cuts.load")
    try:
        plan = _assemble(root, document, files, weights or StoredWeights(files[WEIGHTS]))
        check_plan(plan)
    except PlanError as error:
        raise PlanError(f"{root}: {error.message}", hint="write the plan again") from error
    except (KeyError, ValueError, CutsError) as error:
        raise PlanError(f"{root}: the plan contradicts itself: {error}", hint="write the plan again") from error
    return plan


def read_files(root: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files that a plan names, each checked."""
    return {name: _read_file(root, name, digest) for name, digest in digests.items()}


def _path_within(root: Path, name: str) -> Path:
    path = root / name
    if Path(name).is_absolute() or ".." in Path(name).parts or path.is_symlink():
        raise PlanError(f"{root / 'plan.json'} names the file {quote(name)} outside the plan")
    return path


def _read_file(root: Path, name: str, digest: str) -> bytes:
    path = _path_within(root, name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _missing(path, error) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise PlanError(f"{path} is damaged: its digest does not fit its content", hint="write the plan again")
    return content


def open_weights(root: Path, digests: Mapping[str, str]) -> StoredWeights:
    """Map the weights of a folder; arrays are checked at first use."""
    path = _path_within(root, WEIGHTS)
    try:
        return map_weights(path, digests[WEIGHTS])
    except OSError as error:
        raise _missing(path, error) from error


def _missing(path: Path, error: OSError) -> PlanError:
    return PlanError(f"{path} is missing from the plan: {error.strerror}", hint="write the plan again")


def _assemble(root: Path, document: PlanDocument, files: Mapping[str, bytes], weights: StoredWeights) -> Plan:
    kernels = tuple(_kernel(record, number, files) for number, record in enumerate(document.kernels))
    model = None
    if document.model is not None:
        specs = {name: files[f"specs/{number:02}.cuts"].decode() for number, name in enumerate(document.model.specs)}
        text = GraphText(root, document, files["model.txt"].decode(), weights)
        model = PlannedModel(text, specs, document.model.precision)
    weights.check(document.constants.values())
    return Plan(
        name=document.name,
        target=document.target,
        inputs=document.inputs,
        outputs=document.outputs,
        types=document.types,
        storages=document.storages,
        buffers=document.buffers,
        arena=document.arena,
        constants={name: weights[key] for name, key in document.constants.items()},
        kernels=kernels,
        steps=document.steps,
        groups=document.groups,
        binaries=tuple(
            files[binary_path(n, each.dialect)] if each.binary else None for n, each in enumerate(document.kernels)
        ),
        model=model,
        cuts=document.cuts,
        checks=document.checks,
        loops=document.loops,
        branched=document.branched,
    )


def _kernel(record: KernelRecord, number: int, files: Mapping[str, bytes]) -> KernelFunction:
    return KernelFunction(
        name=record.name,
        dialect=record.dialect,
        source=files[source_path(number, record.dialect)].decode(),
        grid=record.grid,
        block=record.block,
        arguments=record.arguments,
        shared_bytes=record.shared_bytes,
        dynamic_shared=record.dynamic_shared,
        info=record.info,
    )
