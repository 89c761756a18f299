"""Shared helpers of commands: arrays and files, comparison with an oracle."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...backends import Array
from ...compile import CompiledPlan
from ...ir import NumericsError, UsageError, quote
from ...runtime.native import PackedPlan
from . import console

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from ...compile import DynamicPlan, StagedPlan
    from ...numerics import Comparison

AnyPlan: TypeAlias = "CompiledPlan | StagedPlan | DynamicPlan"


def is_staged(plan: AnyPlan | PackedPlan) -> TypeIs[StagedPlan]:
    """Return whether a plan is in stages, without importing its class."""
    if isinstance(plan, (CompiledPlan, PackedPlan)):
        return False
    from ...compile import StagedPlan  # parts of such a plan may still be compiled

    return isinstance(plan, StagedPlan)


def is_dynamic(plan: AnyPlan | PackedPlan) -> TypeIs[DynamicPlan]:
    """Return whether a plan is for ranges of sizes."""
    if isinstance(plan, CompiledPlan):
        return False
    from ...compile import DynamicPlan

    return isinstance(plan, DynamicPlan)


def read_inputs(plan: AnyPlan | PackedPlan, arguments: Namespace) -> dict[str, Array]:
    """Return the inputs of a file, others random by a seed.

    Raises `BackendError` first where memory does not suffice to run the plan, or to verify it.
    """
    if isinstance(plan, CompiledPlan):
        verified = bool(getattr(arguments, "verify", False)) or arguments.command == "verify"
        plan.require_room(reference=verified)
    given = _read_arrays(arguments.input, plan) if arguments.input else {}
    missing = [name for name in plan.inputs if name not in given]
    if missing:
        console.note(f"random inputs (seed {arguments.seed}): {', '.join(map(console.brief, missing))}")
    return {name: array for name, array in plan.random_inputs(arguments.seed).items() if name in missing} | given


def _read_arrays(path: str, plan: AnyPlan | PackedPlan) -> dict[str, Array]:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            if len(plan.inputs) != 1:
                raise UsageError(
                    f"{path} holds one array without a name, the plan has {len(plan.inputs)} inputs",
                    hint="use an .npz file",
                )
            return {next(iter(plan.inputs)): content}
        return {name: content[name] for name in content.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UsageError(f"cannot read arrays from {path}: {error}") from error
    except Exception as error:  # zipfile.BadZipFile and errors of the decompressors
        raise UsageError(f"cannot read arrays from {path}: {type(error).__name__}: {error}") from error


def write_arrays(path: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an .npz file, atomically.

    Raises `UsageError` where the file cannot be written.
    """
    final = Path(path)
    draft = final.with_name(f".{final.name}.part")
    try:
        with draft.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(draft, final)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, and create its folders.

    Raises `UsageError` where the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def compare_plan(plan: AnyPlan, inputs: Mapping[str, Array], onnx: str | None) -> tuple[tuple[Comparison, ...], str]:
    """Compare the outputs with an oracle; return results and its name.

    It is ONNX Runtime on the given model, else the float64 reference.
    """
    from ...runtime import run_onnxruntime

    if onnx is not None:
        return plan.verify(inputs, run_onnxruntime(onnx, inputs)), "ONNX Runtime"
    return plan.verify(inputs), "the float64 reference" + (", part by part" if is_staged(plan) else "")


def own_onnx(path: str, plan: AnyPlan) -> str | None:
    """Return the ONNX file that a plan was compiled from.

    None where ONNX Runtime is missing or cannot know its operations, which are declared by the user.
    """
    if is_staged(plan) or not path.lower().endswith(".onnx") or Path(path).is_dir():
        return None
    from ...runtime import has_onnxruntime

    return path if has_onnxruntime() and not plan.own_operations() else None


def require_right_plan(
    plan: AnyPlan, inputs: Mapping[str, Array], results: tuple[Comparison, ...], oracle: str
) -> None:
    """Raise `NumericsError` where a result is wrong.

    It names the first wrong kernel if that can be found.
    """
    if all(result.ok for result in results):
        return
    from ...numerics import require_correct

    culprit = first_wrong(plan, inputs)
    try:
        require_correct(results, f"plan {quote(plan.name)} against {oracle}")
    except NumericsError as error:
        raise NumericsError(
            error.message, hint=f"first at {culprit}" if culprit else "no single kernel is wrong alone"
        ) from None


def first_wrong(plan: AnyPlan, inputs: Mapping[str, Array]) -> str:
    """Describe the first wrong kernel; empty where there is none.

    It names the first value that outgrew a half type where one did.
    """
    from ...runtime import first_wrong_step

    for part, given in plan.part_inputs(inputs):
        values = part.reference_values(given)
        found = first_wrong_step(part.session, given, values, part.tolerances())
        if found and (found := first_wrong_step(part.session, given, values, part.conditioned_tolerances(given))):
            outgrown = part.first_overflow(given)
            named = outgrown.partition(" ")[0]
            return found if not outgrown or f"{named} " in found else f"{found}; {outgrown}"
    return ""


def plan_values(plan: AnyPlan) -> dict[str, object]:
    """Return the JSON values of a plan."""
    if is_staged(plan):
        parts = [plan_values(part) for part in plan.parts]
        return {"name": plan.name, "target": plan.target.name, "uncompiled": plan.foreign, "parts": parts}
    if is_dynamic(plan):
        dims = {dim.name: [dim.low, dim.high] for dim in plan.dims}
        buckets = [{"sizes": dict(each.sizes), **plan_values(each.plan)} for each in plan.buckets]
        return {"name": plan.name, "target": plan.target.name, "dims": dims, "buckets": buckets}
    return {
        "name": plan.name,
        "target": plan.target.name,
        "groups": [dict(group) for group in plan.plan.groups],
        "steps": len(plan.plan.steps),
        "launches": plan.plan.launch_count,
        "kernels": len(plan.kernels),
        "arena_bytes": plan.plan.arena,
        "branched": plan.plan.branched,
        "state": {name: str(plan.plan.types[tensor.input]) for name, tensor in plan.plan.interface.state.items()},
        "resources": [cubin.report for cubin in plan.cubins],
    }


def note_uncompiled(plan: AnyPlan) -> None:
    """Print the uncompiled operations on standard error, if any."""
    if is_staged(plan):
        plan.notice = lambda text: console.note(f"cuts: warning: {text}")
        plan.warn()
