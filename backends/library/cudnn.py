"""cuDNN through its frontend: the fastest plan of convolutions in strict fp32.

Plans are built one by one: building all of them at once fails as a whole where a single one cannot be built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import inf
from time import monotonic
from typing import Any, Literal, TypeAlias

import numpy as np
from attrs import evolve, frozen

from ...ir import BackendError, DType, install_command, row_major
from ..device import Buffer, Device, Launch, Pointer
from .recognise import Block, Convolution, find_convolution
from .routine import Library, Request, RoutineError

#: Limit of a plan's workspace in bytes.
MAX_WORKSPACE_BYTES = 4 << 30
#: Ratio to the best plan in the first run above which a plan is not timed again.
_MAX_FIRST_RATIO = 1.5
#: Seconds in which plans of a library step are built and timed. Those that cuDNN ranks best come first; it has dozens,
#: many of them with a build time of a tenth of a second.
MAX_PLAN_SECONDS = 1.0


@frozen
class Numerics:
    """Numerics of a convolution: the stored type, and use of tensor cores.

    Sums are in f32. TF32 is f32 by tensor cores.
    """

    stored: DType = DType.F32
    tensor_cores: bool = False

    @property
    def strict(self) -> bool:
        """True where every product is one of f32."""
        return self.stored is DType.F32 and not self.tensor_cores


STRICT = Numerics()
_KINDS = {DType.F32: "FLOAT", DType.F16: "HALF", DType.BF16: "BFLOAT16"}
#: Computed tensor of a convolution: its result, or the gradient of an operand.
Wanted: TypeAlias = Literal["result", "image", "filter"]
#: Frontend call that computes a tensor, and its names of the other two.
_CALLS: Mapping[Wanted, tuple[str, Mapping[str, str]]] = {
    "result": ("conv_fprop", {"image": "image", "filter": "weight"}),
    "image": ("conv_dgrad", {"result": "loss", "filter": "filter"}),
    "filter": ("conv_wgrad", {"image": "image", "result": "loss"}),
}


class PlanLaunch:
    """Launches a plan on fixed tensors; owns workspace and tensor memory."""

    def __init__(
        self,
        graph: Any,
        index: int,
        handle: Any,
        tensors: Mapping[str, Any],
        places: Mapping[str, Pointer],
        workspace: Buffer,
    ) -> None:
        self._graph, self._index, self._handle = graph, index, handle
        self._tensors, self._places, self._workspace = tensors, dict(places), workspace
        self._addresses = {tensor: places[name].address for name, tensor in tensors.items()}
        self._scratch = int(workspace.handle) if workspace.nbytes else 0

    def __call__(self) -> None:
        self._graph.execute_plan_at_index(self._addresses, self._scratch, self._index, self._handle)

    def launch_on(self, places: Mapping[str, Pointer]) -> PlanLaunch:
        """Return the launch of the same plan on other tensors."""
        return PlanLaunch(self._graph, self._index, self._handle, self._tensors, places, self._workspace)

    @property
    def choice(self) -> PlanChoice:
        """Plan without the memory that it is launched on."""
        return PlanChoice(self._graph, self._index, self._handle, self._tensors)


@frozen(eq=False)
class PlanChoice:
    """Built plan of a graph, to be launched on any tensors.

    Each launch has a workspace of its own.
    """

    graph: Any
    index: int
    handle: Any
    tensors: Mapping[str, Any]

    def launch(self, device: Device, places: Mapping[str, Pointer]) -> PlanLaunch:
        """Return the launch of the plan on tensors."""
        needed = int(self.graph.get_workspace_size_plan_at_index(self.index))
        workspace = device.allocate(needed) if needed else Buffer(None, 0)
        return PlanLaunch(self.graph, self.index, self.handle, self.tensors, places, workspace)


@frozen
class CudnnPlan:
    """Built plan: its name, timed launch and seconds."""

    name: str
    launch: PlanLaunch
    seconds: float


class CuDNN(Library):
    """cuDNN with compute type float.

    A library step uses no plans with tensor cores or rounded inputs: every product and sum is in fp32.
    """

    name = "cudnn"

    def __init__(self, frontend: Any) -> None:
        self._cudnn = frontend
        self._handles: dict[int, Any] = {}
        self._fastest: dict[tuple[int, Convolution], PlanChoice] = {}
        self._names: dict[Convolution, tuple[int, str]] = {}

    @property
    def version(self) -> str:
        """Version of cuDNN."""
        return str(self._cudnn.backend_version())

    def supports(self, request: Request) -> bool:
        """Return whether the group is a convolution of 1 to 3 dims."""
        found = find_convolution(request.group, request.storages)
        return found is not None and len(found.strides) <= 3

    def prepare(self, device: Device, request: Request, places: Mapping[str, Pointer]) -> Launch:
        """Return the launch of the fastest plan within the time limit.

        Plans are built and timed once for all equal convolutions.

        Raises `RoutineError` where there is no plan in strict fp32.
        """
        found = find_convolution(request.group, request.storages)
        if found is None:
            raise RoutineError("cuDNN does not compute this group")
        if found.filter.tensor in request.constants:
            found, places = with_plain_filter(device, found, places)
        key = device.stream_handle, found
        if key not in self._fastest:
            self._fastest[key] = self._plan_by_name(device, found) or self._fastest_plan(device, found, places)
        return self._fastest[key].launch(device, places)

    def _fastest_plan(self, device: Device, convolution: Convolution, places: Mapping[str, Pointer]) -> PlanChoice:
        """Return the fastest plan, and record its position and name."""
        plans = self.plans(device, convolution, places, patience=MAX_PLAN_SECONDS)
        if not plans:
            raise RoutineError("cuDNN has no strict fp32 plan for this group")
        best = min(plans, key=lambda plan: plan.seconds)
        self._names[convolution] = best.launch.choice.index, best.name
        return best.launch.choice

    def _plan_by_name(self, device: Device, convolution: Convolution) -> PlanChoice | None:
        """Return the fastest plan of another stream, None where none is known or it is missing."""
        if convolution not in self._names:
            return None
        graph, tensors, handle = self._graph(device, with_planes(convolution), STRICT, "result")
        index, name = self._names[convolution]
        try:
            graph.build_plan_at_index(index)
            same = str(graph.get_plan_name_at_index(index)) == name
        except Exception:  # the frontend's own errors
            return None
        return PlanChoice(graph, index, handle, tensors) if same else None

    def plans(
        self,
        device: Device,
        convolution: Convolution,
        places: Mapping[str, Pointer],
        numerics: Numerics = STRICT,
        wanted: Wanted = "result",
        patience: float = inf,
    ) -> list[CudnnPlan]:
        """Build and time cuDNN's plans, in its own order.

        It stops after `patience` seconds if there is one. For the gradient of an operand, `wanted` names the operand,
        whose block is then computed, and `result` has the given gradient.
        """
        begun = monotonic()
        graph, tensors, handle = self._graph(device, with_planes(convolution), numerics, wanted)
        found: list[CudnnPlan] = []
        workspace = Buffer(None, 0)
        for index in range(graph.get_execution_plan_count()):
            if found and monotonic() - begun > patience:
                break
            try:
                graph.build_plan_at_index(index)
                needed = int(graph.get_workspace_size_plan_at_index(index))
                if needed > MAX_WORKSPACE_BYTES:
                    continue
                if needed > workspace.nbytes:
                    workspace = device.allocate(needed)
                launch = PlanLaunch(graph, index, handle, tensors, places, workspace)
                seconds = device.time(launch, warmup=1, repeats=1, cold=True).median
                if seconds <= _MAX_FIRST_RATIO * min((plan.seconds for plan in found), default=seconds):
                    seconds = device.time(launch, warmup=1, repeats=7, cold=True).typical
                found.append(CudnnPlan(str(graph.get_plan_name_at_index(index)), launch, seconds))
            except BackendError:
                raise  # a failed launch has lost the context
            except Exception:  # the frontend's own errors: this plan is excluded, or not for this problem
                continue
        return found

    def _graph(
        self, device: Device, convolution: Convolution, numerics: Numerics, wanted: Wanted
    ) -> tuple[Any, dict[str, Any], Any]:
        """Return a graph of one convolution with its plans listed, and its tensors by name."""
        computed = self._cudnn.data_type.FLOAT
        kind = getattr(self._cudnn.data_type, _KINDS[numerics.stored])
        handle = self._handle(device)
        graph = self._cudnn.pygraph(
            io_data_type=kind, intermediate_data_type=computed, compute_data_type=computed, handle=handle
        )
        blocks: dict[str, Block] = {part: getattr(convolution, part) for part in ("image", "filter", "result")}
        operands = {part: self._tensor(graph, block, kind) for part, block in blocks.items() if part != wanted}
        build, names = _CALLS[wanted]
        made = getattr(graph, build)(
            **{names[part]: tensor for part, tensor in operands.items()},
            pre_padding=list(convolution.begin),
            post_padding=list(convolution.end),
            stride=list(convolution.strides),
            dilation=list(convolution.dilations),
            compute_data_type=computed,
        )
        made.set_output(True).set_data_type(kind)
        made.set_dim(list(blocks[wanted].sizes)).set_stride(list(blocks[wanted].steps))
        modes = self._cudnn.heur_mode
        notes = self._cudnn.numerical_note
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
            if numerics.stored is DType.F32:
                tensor_cores = [notes.TENSOR_CORE] if numerics.strict else []
                graph.deselect_numeric_notes([*tensor_cores, notes.DOWN_CONVERT_INPUTS])
            graph.check_support()
        except Exception as error:
            raise RoutineError(f"cuDNN refuses a convolution: {error}") from error
        return graph, {blocks[part].tensor: tensor for part, tensor in (*operands.items(), (wanted, made))}, handle

    def _tensor(self, graph: Any, block: Block, kind: Any) -> Any:
        return graph.tensor(name=block.tensor, dim=list(block.sizes), stride=list(block.steps), data_type=kind)

    def _handle(self, device: Device) -> Any:
        stream = device.stream_handle
        if stream not in self._handles:
            handle = self._cudnn.create_handle()
            self._cudnn.set_stream(handle=handle, stream=stream)
            self._handles[stream] = handle
        return self._handles[stream]


def with_plain_filter(
    device: Device, convolution: Convolution, places: Mapping[str, Pointer]
) -> tuple[Convolution, Mapping[str, Pointer]]:
    """Return the convolution on a row-major copy of its filter.

    cuDNN has no plans for most other orders of dims.
    """
    block = convolution.filter
    plain = row_major(block.sizes)
    if block.steps == plain:
        return convolution, places
    stored = np.empty(1 + sum((n - 1) * s for n, s in zip(block.sizes, block.steps, strict=True)), np.float32)
    device.download(stored, places[block.tensor])
    array = np.ascontiguousarray(np.lib.stride_tricks.as_strided(stored, block.sizes, [4 * s for s in block.steps]))
    copy = Pointer(device.allocate(array.nbytes))
    device.upload(copy, array)
    return evolve(convolution, filter=Block(block.tensor, block.sizes, plain)), {**places, block.tensor: copy}


def with_planes(convolution: Convolution) -> Convolution:
    """Return a convolution of one spatial dim as one of two.

    cuDNN supports none of one.
    """
    if len(convolution.strides) != 1:
        return convolution

    def wide(block: Block) -> Block:
        return Block(block.tensor, (*block.sizes, 1), (*block.steps, 1))

    def pad(values: Sequence[int], last: int) -> tuple[int, ...]:
        return (*values, last)

    return Convolution(
        wide(convolution.image), wide(convolution.filter), wide(convolution.result),
        pad(convolution.strides, 1), pad(convolution.dilations, 1), pad(convolution.begin, 0),
        pad(convolution.end, 0),
    )  # fmt: skip


def open_library() -> CuDNN:
    """Return cuDNN.

    Raises `RoutineError` where its frontend cannot be imported.
    """
    try:
        frontend = import_module("cudnn")
        frontend.backend_version()
        return CuDNN(frontend)
    except (
        Exception
    ) as error:  # besides ImportError, the frontend raises errors of its own where the library is missing
        raise RoutineError(f"cuDNN cannot be used: {error}", hint=install_command("libraries")) from error
