"""Writing of a plan's folder.

A folder is written beside its final place and renamed, so that a plan is complete or absent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve
from safetensors.numpy import save as save_tensors

from ...ir import Array, Graph, KernelFunction, PlanError, print_graph
from ..plan import Plan
from .plan_document import KernelRecord, ModelRecord, PlanDocument, parse_document, plain, write_document
from .plan_file import binary_path, source_path
from .weights import WEIGHTS, Weights


def save_plan(plan: Plan, folder: str | os.PathLike[str]) -> None:
    """Write a plan's folder.

    An older plan there is replaced, anything else is left alone.
    """
    write_folder(Path(folder), plan_files(plan))


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a plan, all or none.

    Raises `PlanError` where the folder cannot be written.
    """
    _check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    except OSError as error:
        raise PlanError(f"cannot write plan {target}: {error.strerror}") from error
    try:
        for name, content in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(content)
        _replace(draft, target)
    except OSError as error:
        raise PlanError(f"cannot write plan {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_replaceable(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PlanError(f"cannot write plan {target}: it exists and is no folder", hint="choose another name with -o")
    if target.is_dir() and any(target.iterdir()) and not (target / "plan.json").is_file():
        raise PlanError(
            f"cannot write plan {target}: the folder holds something that is no plan",
            hint="choose another name with -o",
        )


def _replace(draft: Path, target: Path) -> None:
    draft.chmod(0o755)
    if not target.exists():
        draft.rename(target)
        return
    retired = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        target.rename(retired / "plan")
        draft.rename(target)
    finally:
        shutil.rmtree(retired, ignore_errors=True)


def plan_files(plan: Plan) -> dict[str, bytes]:
    """Return the files of a plan's folder."""
    return with_document(*plan_content(plan))


def complete_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a stored plan with their digests in plan.json.

    The store has digests of its own.
    """
    others = {name: content for name, content in files.items() if name != "plan.json"}
    document = parse_document(files["plan.json"], Path("plan.json"))
    return with_document(others, document) if isinstance(document, PlanDocument) else dict(files)


def with_document(files: dict[str, bytes], document: PlanDocument) -> dict[str, bytes]:
    """Return files and plan.json, which has their digests."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return files | {"plan.json": write_document(evolve(document, files=digests))}


def plan_content(plan: Plan) -> tuple[dict[str, bytes], PlanDocument]:
    """Return a copy as files, and the document without digests."""
    weights = Weights({})
    files: dict[str, bytes] = {}
    kernels = []
    for number, kernel in enumerate(plan.kernels):
        code = plan.binaries[number]
        files[source_path(number, kernel.dialect)] = kernel.source.encode()
        if code is not None:
            files[binary_path(number, kernel.dialect)] = code
        kernels.append(_record(kernel, code is not None))
    constants = {name: weights.add(array) for name, array in plan.constants.items()}
    model = None
    if plan.model is not None:
        graph = plan.model.graph
        files["model.txt"] = print_graph(graph).encode()
        paths = [f"specs/{number:02}.cuts" for number in range(len(plan.model.specs))]
        files |= {path: text.encode() for path, text in zip(paths, plan.model.specs.values(), strict=True)}
        found = {name: weights.add_reordered(array) for name, array in _arrays(graph).items()}
        keys = {name: key for name, (key, _) in found.items()}
        orders = {name: order for name, (_, order) in found.items() if order}
        model = ModelRecord(keys, tuple(plan.model.specs), plan.model.precision, orders)
    files[WEIGHTS] = save_tensors(weights.arrays)
    document = PlanDocument(
        plan.cuts, plan.name, plan.target, plan.inputs, plan.outputs, dict(plan.types), dict(plan.storages),
        dict(plan.buffers), plan.arena,
        constants, tuple(kernels), plan.steps, tuple(plain(group) for group in plan.groups), model,
        {}, plan.checks, plan.loops, plan.branched,
    )  # fmt: skip
    return files, document


def _arrays(graph: Graph) -> dict[str, Array]:
    """Return the arrays beside a graph's text: its constants, and initial values of state by their inputs."""
    return {**graph.constants, **{tensor.input: tensor.initial for tensor in graph.interface.state.values()}}


def _record(kernel: KernelFunction, binary: bool) -> KernelRecord:
    return KernelRecord(
        kernel.name, kernel.dialect, kernel.grid, kernel.block, kernel.arguments, kernel.shared_bytes,
        kernel.dynamic_shared, plain(kernel.info), binary,
    )  # fmt: skip
