"""Programs of PyTorch with operations outside the vocabulary.

They are cut as graphs of `torch.compile` are: PyTorch runs such operations, and values stay on its device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from attrs import define

from ...backends import Array
from ...ir import BackendError, PlanError, Target, TensorType, UsageError, install_command
from ...runtime import PlannedStage, ProgramRecord, check_names, checked_inputs, load_stages, save_program
from ..external_buffers import program_of
from ..graph_signatures import signature_of_record, signature_record
from ..plan import CompiledPlan
from .staged_plan import Compile, StagedPlan

if TYPE_CHECKING:
    from ...frontends.torch import ArrayFunction, CapturedGraph, StagedProgram, TensorProgram


@define(eq=False)
class _LazyProgram:
    """Choice of a plan's program, which is opened when it first runs.

    It runs in PyTorch's memory where that lies on the plan's device, and index checks are none.
    """

    plan: CompiledPlan
    device: Any
    program: TensorProgram | ArrayFunction | None = None

    def choose(self) -> TensorProgram | ArrayFunction:
        """Return the program."""
        if self.program is None:
            kind = {"cuda": "cuda", "opencl": "cpu"}.get(self.plan.target.dialect)
            in_place = kind == self.device.type and not self.plan.plan.checks
            self.program = program_of(self.plan, self.device.index or 0) if in_place else self.plan.run
        return self.program


class ProgramPlan(StagedPlan):
    """Exported program in stages; state persists between runs."""

    def __init__(self, program: StagedProgram, plans: Mapping[int, CompiledPlan], target: Target) -> None:
        super().__init__(program.name, target)
        self.program = program
        self.plans = plans
        self._initial = dict(program.state)
        self._alone = RLock()

    @property
    def foreign(self) -> dict[str, list[str]]:
        return {op: list(names) for op, names in self.program.foreign.items()}

    @property
    def warning(self) -> str:
        return self.program.warning

    @property
    def category(self) -> type[Warning]:
        from ...frontends.torch import UncompiledWarning

        return UncompiledWarning

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        return self.program.inputs

    @property
    def parts(self) -> tuple[CompiledPlan, ...]:
        return tuple(self.plans.values())

    @property
    def foreign_time(self) -> float | None:
        return self.program.function.time_share

    @property
    def state(self) -> dict[str, Array]:
        """The values by name of the buffers that the program writes."""
        from ...frontends.torch import array_results

        return {name: array.copy() for name, array in array_results(self.program.state).items()}

    def set_state(self, values: Mapping[str, object]) -> None:
        """Let the next run begin with other values of some state.

        Raises `UsageError` for names that are no state of the plan, and for other types.
        """
        from ...frontends.torch import state_tensor, type_of_tensor

        with self._alone:
            types = {name: type_of_tensor(tensor) for name, tensor in self.program.state.items()}
            unknown = [name for name in values if name not in types]
            if unknown:
                raise UsageError(f"the plan has no state '{unknown[0]}'", hint=f"it has: {', '.join(types) or 'none'}")
            arrays = checked_inputs(types, tuple(values), values, "state")
            device = self.program.function.device
            self.program.state |= {name: state_tensor(array, device) for name, array in arrays.items()}

    def reset_state(self) -> None:
        """Let the next run begin with the initial values of all state."""
        with self._alone:
            self.program.state = dict(self._initial)

    def run(self, inputs: Mapping[str, Any], *, on_device: bool = False) -> dict[str, Any]:
        """Return the outputs by name: arrays, or PyTorch's tensors `on_device`.

        Inputs may be arrays, or tensors of PyTorch, which are read where they lie.
        """
        from ...frontends.torch import array_results

        given = self._check_inputs(inputs)
        with self._alone:
            found, state = self.program.split_state(self.program.run(given))
            self.program.state = state
        return found if on_device else array_results(found)

    def outputs_of(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        from ...frontends.torch import array_results

        with self._alone:
            found, _ = self.program.split_state(self.program.run(self._check_inputs(inputs)))
        return {name: value for name, value in array_results(found).items() if hasattr(value, "dtype")}

    def trace(self, inputs: Mapping[str, Array]) -> None:
        """Do nothing: shapes are fixed, and all parts are compiled."""

    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        found: list[tuple[CompiledPlan, Mapping[str, Any]]] = []

        def note(position: int, arrays: Mapping[str, Array]) -> None:
            plan = self.plans[position]
            found.append((plan, {name: arrays[name].copy() for name in plan.inputs}))

        with self._alone:
            self.program.run(self._check_inputs(inputs), note)
        yield from found

    def _check_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs: tensors on a GPU as they are, others as arrays of the right types."""
        check_names(tuple(self.inputs), inputs)
        there = self.program.function.device.type == "cuda"
        tensors = {name: v for name, v in inputs.items() if there and hasattr(v, "__cuda_array_interface__")}
        others = {name: inputs[name] for name in self.inputs if name not in tensors}
        return tensors | checked_inputs(self.inputs, tuple(others), others)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan's folder atomically.

        Raises `PlanError` where PyTorch cannot export one of its stages.
        """
        program = self.program
        stages = []
        for position, call in enumerate(program.function.calls):
            ends = call.inputs, call.outputs, call.released
            if position in self.plans:
                record = signature_record(program.signatures[position])
                stages.append(PlannedStage(*ends, self.plans[position].plan, record))
            else:
                stages.append(PlannedStage(*ends, archive=program.archive(position)))
        results = zip(program.ends.results, program.function.results, strict=True)
        content = ProgramRecord(
            self.name, self.target, self.inputs, tuple((end.kind, end.name) for end in program.ends.arguments),
            tuple({"kind": e.kind, "name": e.name, "number": n, "value": v} for e, (n, v) in results),
            self.state_at_start(), tuple(stages), program.foreign, program.warning,
        )  # fmt: skip
        save_program(content, folder)

    def reopen(self) -> Callable[[Path], ProgramPlan]:
        return open_program

    def state_at_start(self) -> dict[str, Array]:
        """Return the initial values of the state."""
        from ...frontends.torch import array_results

        return array_results(self._initial)


def program_plan(model: Any, args: Sequence[Any], target: Target, compile_part: Compile) -> ProgramPlan:
    """Compile a model of PyTorch in parts, without a warning.

    Raises `BackendError` where PyTorch is missing.
    """
    try:
        from ...frontends.torch import device_for, exported_program, program_name, stage_program
    except ImportError as error:
        raise BackendError(f"a model of PyTorch needs PyTorch: {error}", hint=install_command("torch")) from error
    plans: list[CompiledPlan] = []

    def compile_graph(captured: CapturedGraph, device: Any) -> _LazyProgram:
        plans.append(compile_part(captured.graph))
        return _LazyProgram(plans[-1], device)

    program = exported_program(model, args)
    staged = stage_program(program, device_for(target.dialect), compile_graph, program_name(model))
    return ProgramPlan(staged, dict(zip(staged.signatures, plans, strict=True)), target)


def open_program(folder: str | os.PathLike[str]) -> ProgramPlan:
    """Open the folder of a program in stages.

    Raises `PlanError` where PyTorch is missing.
    """
    record = load_stages(folder, ProgramRecord)
    try:
        from ...frontends.torch import StoredStage, device_for, reopen_program
    except ImportError as error:
        raise PlanError(
            f"plan {folder} runs operations of PyTorch, which is missing: {error}", hint=install_command("torch")
        ) from error
    device = device_for(record.target.dialect)
    plans = {n: CompiledPlan(stage.plan) for n, stage in enumerate(record.stages) if stage.plan is not None}
    stages = [
        StoredStage(
            stage.inputs, stage.outputs, stage.released,
            None if stage.signature is None else signature_of_record(stage.signature),
            _LazyProgram(plans[n], device) if n in plans else None, stage.archive,
        )
        for n, stage in enumerate(record.stages)
    ]  # fmt: skip
    program = reopen_program(
        record.name, record.types, record.arguments, record.results, record.state, stages, record.foreign,
        record.warning, device,
    )  # fmt: skip
    return ProgramPlan(program, plans, record.target)
