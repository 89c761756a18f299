"""The folder form of a plan.

    plan.json              everything but the bulk: versioned, with a digest of itself and of every other file
    kernels/0000.cl|.cu    sources, kernels/0000.cubin beside them where they were compiled
    weights.safetensors    constants
    model.txt, specs/*     the graph as it was given, in its text form, and the user's declarations it needs

A folder is written beside its final place and renamed, so that a plan is complete or absent. Digests find damage, not
malice: a plan contains code, so load only plans from trusted sources.
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

from ...ir import (
    Array,
    CutsError,
    Graph,
    KernelFunction,
    PlanError,
    parse_graph,
    print_graph,
    quote,
    source_suffix,
)
from ..plan import Plan, PlannedModel, check_plan
from .plan_document import (
    Document,
    KernelRecord,
    ModelRecord,
    PlanDocument,
    parse_document,
    plain,
    read_document,
    write_document,
)
from .weights import Weights, read_weights


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
            files[_binary_path(number)] = code
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
    files["weights.safetensors"] = save_tensors(weights.arrays)
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


def source_path(number: int, dialect: str) -> str:
    """Return the path of a kernel's source in a plan's folder."""
    return f"kernels/{number:04}{source_suffix(dialect)}"


def _binary_path(number: int) -> str:
    return f"kernels/{number:04}.cubin"


def load_plan(folder: str | os.PathLike[str]) -> Plan:
    """Read a plan's folder, checking every digest.

    Raises `PlanError` for a folder that is none, is damaged, or is too new.
    """
    root = Path(folder)
    document = read_document(root)
    return _check_and_assemble(root, document, read_files(root, document.files))


def plan_of_files(files: Mapping[str, bytes], name: str) -> Plan:
    """Read a plan from the files of its folder.

    Their digests are checked before; `name` is for errors.

    Raises `PlanError` for files of no plan, or of another version.
    """
    return _check_and_assemble(Path(name), parse_document(files.get("plan.json", b""), Path(name) / "plan.json"), files)


def _check_and_assemble(root: Path, document: Document, files: Mapping[str, bytes]) -> Plan:
    if not isinstance(document, PlanDocument):
        raise PlanError(f"{root} is the plan of a model in stages", hint="open it with cuts.load")
    try:
        plan = _assemble(document, files)
        check_plan(plan)
    except PlanError as error:
        raise PlanError(f"{root}: {error.message}", hint="write the plan again") from error
    except (KeyError, ValueError, CutsError) as error:
        raise PlanError(f"{root}: the plan contradicts itself: {error}", hint="write the plan again") from error
    return plan


def read_files(root: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files that a plan names, each checked."""
    return {name: _read_file(root, name, digest) for name, digest in digests.items()}


def _read_file(root: Path, name: str, digest: str) -> bytes:
    path = root / name
    if Path(name).is_absolute() or ".." in Path(name).parts or path.is_symlink():
        raise PlanError(f"{root / 'plan.json'} names the file {quote(name)} outside the plan")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PlanError(f"{path} is missing from the plan: {error.strerror}", hint="write the plan again") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise PlanError(f"{path} is damaged: its digest does not fit its content", hint="write the plan again")
    return content


def _assemble(document: PlanDocument, files: Mapping[str, bytes]) -> Plan:
    weights = read_weights(files["weights.safetensors"])
    kernels = tuple(_kernel(record, number, files) for number, record in enumerate(document.kernels))
    model = None
    if document.model is not None:
        orders = document.model.orders
        constants = {
            name: weights[key].transpose(orders[name]) if name in orders else weights[key]
            for name, key in document.model.constants.items()
        }
        specs = {name: files[f"specs/{number:02}.cuts"].decode() for number, name in enumerate(document.model.specs)}
        graph = parse_graph(files["model.txt"].decode(), constants, "model.txt")
        model = PlannedModel(graph, specs, document.model.precision)
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
        binaries=tuple(files[_binary_path(n)] if record.binary else None for n, record in enumerate(document.kernels)),
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
