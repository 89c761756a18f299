"""Compiled plan with its operations: run, verify, save and load.

`plan_of` assembles one from the result of the passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from attrs import evolve

from ..backends import require_host_memory
from ..ir import (
    Array,
    CompiledGraph,
    Graph,
    GraphError,
    KernelFunction,
    PlanError,
    PrecisionName,
    Target,
    TensorType,
    UsageError,
    quote,
)
from ..runtime import (
    HostState,
    LaunchParameters,
    Plan,
    PlannedModel,
    Session,
    check_names,
    checked_inputs,
    checked_state,
    launch_parameters,
    load_plan,
    make_plan,
    random_inputs,
    tensor_offset,
)
from .portable_plan import PortablePlan

if TYPE_CHECKING:
    from ..backends.compilers import Cubin
    from ..numerics import Comparison
    from .loading import Spec
    from .plan_reference import PlanReference


class CompiledPlan(PortablePlan):
    """Plan with the means to run, verify, save and load it.

    `cache_name` is the name of its entry in the store.

    It is re-entrant: threads that call `run` wait for one another, and the result of a run does not change later.
    Threads that run concurrently each open a `Session` of `plan`. `state` has the buffers that a program writes; they
    persist between runs.
    """

    def __init__(self, plan: Plan, cubins: tuple[Cubin, ...] = (), complete: bool = True, cache_name: str = "") -> None:
        self.plan = plan
        self.cache_name = cache_name
        self.cubins = cubins
        self.complete = complete
        self._session: Session | None = None
        self._opening = Lock()
        self._host_state: HostState | None = None
        self._alone = RLock()

    @property
    def kernels(self) -> tuple[KernelFunction, ...]:
        """Kernels: source, geometry, arguments and schedule of each."""
        return self.plan.kernels

    @property
    def launches(self) -> tuple[LaunchParameters, ...]:
        """Launches of a run in order: kernel, binary, arguments in `arena`."""
        return tuple(launch_parameters(self.plan))

    @property
    def arena(self) -> int:
        """Bytes of the one block of memory for a run."""
        return self.plan.arena

    @property
    def constants(self) -> Mapping[str, Array]:
        """Constants by name; they are in the arena before the first run."""
        return self.plan.constants

    def offset(self, tensor: str) -> int:
        """Return the bytes from the arena's start to a tensor.

        It is an input, an output or a constant.

        Raises `UsageError` where the plan has no such tensor, or it does not lie in memory in order.
        """
        type_, storage = self.plan.types.get(tensor), self.plan.storages.get(tensor)
        if type_ is None or storage is None:
            known = ", ".join(map(quote, (*self.plan.inputs, *self.plan.outputs, *self.plan.constants)))
            raise UsageError(f"plan {quote(self.name)} has no tensor {quote(tensor)}", hint=f"it has: {known}")
        if any(n != 1 and a != b for n, a, b in zip(type_.shape, storage.strides, type_.strides, strict=True)):
            raise UsageError(f"tensor {quote(tensor)} has strides {storage.strides}", hint="see plan.plan.storages")
        return tensor_offset(self.plan, tensor)

    @property
    def target(self) -> Target:
        """Target that the plan was compiled for."""
        return self.plan.target

    @property
    def name(self) -> str:
        """The model's name."""
        return self.plan.name

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs; state is none."""
        return {name: self.plan.types[name] for name in self.plan.interface.caller_inputs(self.plan.inputs)}

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        """The types of the outputs; results that are no tensors have none."""
        return {name: self.plan.types[name] for name in self.plan.interface.caller_outputs(self.plan.outputs)}

    def __repr__(self) -> str:
        """Return inputs, outputs, the number of kernels, and the target."""
        given, found = (", ".join(f"{n}: {t}" for n, t in types.items()) for types in (self.inputs, self.outputs))
        steps = len(self.plan.steps)
        size = f"{len(self.kernels)} kernels in {steps} steps" if self.target.dialect != "reference" else "no kernels"
        return f"CompiledPlan({self.name!r}: ({given}) -> ({found}), {size}, for {self.target.name})"

    @property
    def parts(self) -> tuple[CompiledPlan, ...]:
        """Parts that are compiled together: the whole plan."""
        return (self,)

    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        """Yield each part that is compiled together, with its inputs."""
        yield self, inputs

    @property
    def session(self) -> Session:
        """The plan opened on its device; opened when it is first needed."""
        with self._opening:
            if self._session is None:
                self._session = Session(self.plan)
            return self._session

    @property
    def state(self) -> dict[str, Array]:
        """The values by name of the buffers that the program writes."""
        return self._state.read() if isinstance(self._state, HostState) else self._state.state

    def set_state(self, values: Mapping[str, object]) -> None:
        """Let the next run begin with other values of some state.

        Raises `UsageError` for names that are no state of the plan, and for other types.
        """
        if isinstance(self._state, HostState):
            with self._alone:
                self._state.write(checked_state(self.plan, values))
        else:
            self._state.set_state(values)

    def reset_state(self) -> None:
        """Let the next run begin with the initial values of all state."""
        if isinstance(self._state, HostState):
            with self._alone:
                self._state.reset()
        else:
            self._state.reset_state()

    @property
    def _state(self) -> HostState | Session:
        """The owner of the state: the session, or the host where the target launches no kernels."""
        if self.plan.target.dialect != "reference" and self.plan.interface.state:
            return self.session
        with self._opening:
            if self._host_state is None:
                self._host_state = HostState(self.plan)
            return self._host_state

    def run(self, inputs: Mapping[str, object], *, on_device: bool = False) -> dict[str, Any]:
        """Run the plan on arrays by name; return a dict of arrays.

        Inputs may be NumPy arrays, or support DLPack or `__cuda_array_interface__`.
        """
        if self.plan.target.dialect == "reference":
            return self._run_on_host(inputs)
        return self.session.run(inputs, on_device=on_device)

    def _run_on_host(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Run on the reference, and keep the state that it leaves."""
        interface = self.plan.interface
        check_names(tuple(self.inputs), inputs)
        with self._alone:
            found = self._reference(inputs)
            moved = {name: found[tensor.output] for name, tensor in interface.state.items()}
            self.set_state(moved)
        return interface.results({name: found[name] for name in self.outputs})

    def require_room(self, reference: bool = False) -> None:
        """Raise `BackendError` where device or host lacks memory for a run.

        With `reference`, the memory of the float64 reference counts.

        The host needs the inputs and, for the reference, in float64 at least the operands and results of one operation.
        """
        nbytes = sum(type_.nbytes for type_ in self.inputs.values())
        if reference or self.target.dialect == "reference":
            graph = self._model().graph
            touched = (dict.fromkeys((*node.operands, *node.outputs)) for node in graph.nodes)
            nbytes += max((sum(8 * graph.types[name].size for name in names) for names in touched), default=0)
        require_host_memory(nbytes, f"a run of {quote(self.name)}" + (" on the reference" if reference else ""))
        if self.target.dialect != "reference":
            _ = self.session  # which takes the device's memory

    def reference(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute the outputs in float64 from the declarations, independently of every kernel."""
        found = self._reference(inputs)
        return self.plan.interface.results({name: found[name] for name in self.outputs})

    def _reference(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute all outputs in float64, those of state too."""
        return self._oracle.results(self._all_inputs(inputs))

    def _all_inputs(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return the inputs, checked, with the present state where it is not given."""
        return checked_inputs(self.plan.types, self.plan.inputs, self._with_state(inputs))

    def _with_state(self, inputs: Mapping[str, object]) -> Mapping[str, object]:
        state = self.plan.interface.state
        if not state or not isinstance(inputs, Mapping):
            return inputs
        now = self.state
        return {**{tensor.input: now[name] for name, tensor in state.items()}, **inputs}

    def reference_values(self, inputs: Mapping[str, object], kind: npt.DTypeLike = np.float64) -> dict[str, Any]:
        """Compute every value of the model, intermediates included, like `reference`.

        Floats have the precision `kind`.
        """
        return self._oracle.values(self._all_inputs(inputs), kind)

    def random_inputs(self, seed: int = 0) -> dict[str, Any]:
        """Return random inputs of the right types."""
        return random_inputs(self.plan.types, tuple(self.inputs), seed)

    def own_operations(self) -> tuple[str, ...]:
        """Return the user-declared operations of the model, in order."""
        return self._oracle.own_operations()

    def tolerances(self) -> dict[str, float]:
        """Return the relative rounding error for every value of the model."""
        used = {str(name) for group in self.plan.groups for name in _as_list(group.get("algorithms"))}
        return self._oracle.tolerances(used)

    def verify(
        self, inputs: Mapping[str, object] | None = None, oracle: Mapping[str, Any] | None = None
    ) -> tuple[Comparison, ...]:
        """Run and compare every output with an oracle.

        The oracle is the float64 reference, unless its values are given.

        State that the run leaves is compared with that of the reference; the state of the plan stays as it is.

        Raises `GraphError` where the oracle lacks an output.
        """
        given = self._with_state(inputs if inputs is not None else self.random_inputs())
        expected = oracle if oracle is not None else self._reference(given)
        rounded = 1.0 if oracle is None else 2.0  # another implementation rounds as we do, the reference does not
        allowed = {name: rounded * value for name, value in self.tolerances().items()}
        names = tuple(self.outputs) if oracle is not None else self.plan.outputs
        found = self._run_stateless(given, names)
        missing = [name for name in names if name not in expected]
        if missing:
            raise GraphError(
                f"the oracle has no output {quote(missing[0])}", hint=f"it has: {', '.join(map(quote, expected))}"
            )
        results = self._oracle.compare({name: found[name] for name in names}, expected, allowed)
        return results if all(result.ok for result in results) else self._apply_condition(results, given)

    def _run_stateless(self, inputs: Mapping[str, object], names: Sequence[str]) -> dict[str, Any]:
        """Run on all inputs, those of state too; leave the state as it is."""
        if not self.plan.interface.state:
            return self.run(inputs)
        on_host = self.plan.target.dialect == "reference"
        return self._reference(inputs) if on_host else self.session.run_on(inputs, (), names)

    def _apply_condition(self, results: tuple[Comparison, ...], inputs: Mapping[str, object]) -> tuple[Comparison, ...]:
        """Return comparisons whose tolerance follows the condition of the function."""
        allowed = self.conditioned_tolerances(inputs)
        return tuple(evolve(r, tolerance=max(r.tolerance, allowed.get(r.tensor, 0.0))) for r in results)

    def conditioned_tolerances(self, inputs: Mapping[str, object]) -> dict[str, float]:
        """Return tolerances that account for rounding and the function's condition.

        There is a relative error for every value of the model.

        The function itself may lose digits: a cosine of 4,096 radians does in single precision, in every
        implementation. The loss is the difference between the declaration evaluated in single precision, operation by
        operation, and in double precision. A kernel may lose as much in each of two ways of rounding, so twice the loss
        is accepted.
        """
        lost = self._oracle.rounding_losses(self._all_inputs(inputs))
        return {name: max(value, 2 * lost.get(name, 0.0)) for name, value in self.tolerances().items()}

    def first_overflow(self, inputs: Mapping[str, object]) -> str:
        """Describe the first value that overflows the policy's half type, if any."""
        return self._oracle.first_overflow(self._all_inputs(inputs))

    def saturated_values(self, inputs: Mapping[str, object]) -> Iterator[str]:
        """Describe 8-bit floats that are the largest of their type."""
        return self._oracle.saturated_values(self._all_inputs(inputs))

    def pack(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as one file, for `PackedPlan` and C."""
        from ..runtime.native import write_packed

        write_packed(self.plan, path)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan's folder atomically.

        It has the files of the cached entry, where there is one: its weights are not arranged again.
        """
        from ..runtime import complete_files, plan_files, write_folder
        from ..store import EntryStore

        cached = EntryStore.open().read("plan", self.cache_name) if self.cache_name else None
        write_folder(Path(folder), complete_files(cached) if cached else plan_files(self.plan))

    def reopen(self) -> Callable[[Path], CompiledPlan]:
        return open_plan

    @property
    def _oracle(self) -> PlanReference:
        """The reference of the model, which reads declarations: a plan runs without it."""
        from .plan_reference import PlanReference

        return PlanReference.of(self._model())

    def _model(self) -> PlannedModel:
        if self.plan.model is None:
            raise PlanError(f"plan {quote(self.plan.name)} has no model, so there is nothing to compare with")
        return self.plan.model


def _as_list(value: object) -> Sequence[object]:
    """Return a record's list; nothing where there is none."""
    return value if isinstance(value, (list, tuple)) else ()


def open_plan(folder: str | os.PathLike[str]) -> CompiledPlan:
    """Open a plan's folder."""
    return CompiledPlan(load_plan(folder))


def plan_of(
    compiled: CompiledGraph, graph: Graph, spec: Spec, target: Target, precision: PrecisionName = "fp32"
) -> CompiledPlan:
    """Assemble a plan from the passes' result.

    The plan has cubins where this machine can compile them.
    """
    cubins = compile_binaries(compiled, target)
    model = PlannedModel(graph, spec.texts, precision)
    plan = make_plan(compiled, target, model, tuple(cubin.code for cubin in cubins))
    return CompiledPlan(plan, cubins, compiled.complete)


def compile_binaries(compiled: CompiledGraph | Plan, target: Target) -> tuple[Cubin, ...]:
    """Compile CUDA kernels to cubins where this machine has a compiler.

    The result is empty for other targets or without one.
    """
    if target.dialect != "cuda":
        return ()
    from ..backends.compilers import compile_kernels, toolchains

    if not toolchains():
        return ()
    return compile_kernels(compiled.kernels, target.arch)
