"""Exported programs in stages, as functions of arrays."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen

from ....ir import Array, PlanError, TensorType
from ..captured_graph import GraphSignature
from ..dispatch import conversion
from ..exported import check_memory, written_targets
from ..import_context import array_of, dtype_of
from ..loading import core_program, graph_of_nodes, load_program
from ..program import Choice, CompileGraph
from ..tensors import function_of_signature, tensor_of_array
from .cut_graph import compile_stages
from .program_graph import CALLER, STATE, ProgramEnd, ProgramEnds, initial_state, program_graph
from .staged_function import StageCall, StagedFunction


@define
class StagedProgram:
    """Program in stages: compiled parts, and stages of PyTorch between them.

    `signatures` has the signature of each compiled stage, by position, and `archives` the exported programs of
    PyTorch's ones that were exported so far. State has the values by the names of buffers.
    """

    name: str
    ends: ProgramEnds
    inputs: Mapping[str, TensorType]
    state: dict[str, torch.Tensor]
    function: StagedFunction
    signatures: Mapping[int, GraphSignature]
    foreign: Mapping[str, tuple[str, ...]]
    warning: str
    archives: dict[int, bytes] = field(factory=dict, repr=False)

    def run(
        self, given: Mapping[str, Any], observe: Callable[[int, Mapping[str, Array]], None] | None = None
    ) -> dict[str, Any]:
        """Return the results by name, and those of state by buffer.

        `observe` gets the position and the inputs of each compiled stage. The state stays as it is.
        """

        def note(position: int, operands: Sequence[Any]) -> None:
            if observe is not None and position in self.signatures:
                observe(position, _named_arrays(self.signatures[position], operands))

        arguments = [
            self.state[end.name] if end.kind == STATE else _tensor_on(given[end.name], self.function.device)
            for end in self.ends.arguments
        ]
        storages = {argument.untyped_storage().data_ptr() for argument in arguments}
        with torch.no_grad():
            found = self.function(arguments, note if observe is not None else None)
            return {end.name: _copy_of(value, storages) for end, value in zip(self.ends.results, found, strict=True)}

    def split_state(self, found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return the caller's results of a run, and the new state."""
        state = {end.name: found[end.name] for end in self.ends.results if end.kind == STATE}
        return {name: value for name, value in found.items() if name not in state}, state

    def archive(self, position: int) -> bytes:
        """Return a stage of PyTorch as an exported program in bytes.

        Raises `PlanError` where PyTorch cannot export it.
        """
        if position not in self.archives:
            self.archives[position] = _export(self.function.calls[position].function)
        return self.archives[position]


def stage_program(
    program: torch.export.ExportedProgram, device: torch.device, compile_graph: CompileGraph, name: str = "torch"
) -> StagedProgram:
    """Compile an exported program in parts."""
    core = core_program(program, lambda name: conversion(name) is not None)
    check_memory(core.signature, core.held, written_targets(core.signature))
    module, ends = program_graph(core, device)
    signatures: list[GraphSignature] = []

    def compile_part(part: torch.fx.Graph) -> Callable[..., list[Any]]:
        captured = graph_of_nodes(part, None, True)
        function = function_of_signature(captured.signature, device, compile_graph(captured, device))
        signatures.append(captured.signature)
        return function

    stages = compile_stages(module.graph, device, {}, compile_part, f"program '{name}'")
    assert stages is not None, "a program may be one part"
    compiled = [position for position, call in enumerate(stages.function.calls) if call.compiled]
    places = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    types = {
        end.name: type_of_tensor(value) for end, value in zip(ends.arguments, places, strict=True) if end.kind == CALLER
    }
    state = {key: tensor.to(device) for key, tensor in initial_state(core, ends).items()}
    numbered = dict(zip(compiled, signatures, strict=True))
    return StagedProgram(name, ends, types, state, stages.function, numbered, stages.foreign, stages.warning)


@frozen(eq=False)
class StoredStage:
    """Stage in a plan's folder: a compiled program, or PyTorch's archive."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]
    signature: GraphSignature | None = None
    compiled: Choice | None = None
    archive: bytes | None = None

    def call(self, device: torch.device) -> StageCall:
        """Return the stage as a call."""
        ends = self.inputs, self.outputs, self.released
        if self.signature is None or self.compiled is None:
            module: Callable[..., Sequence[Any]] = load_program(io.BytesIO(self.archive or b"")).module()
            return StageCall(module, False, *ends)
        return StageCall(function_of_signature(self.signature, device, self.compiled), True, *ends)


def reopen_program(
    name: str,
    inputs: Mapping[str, TensorType],
    arguments: Sequence[tuple[str, str]],
    results: Sequence[Mapping[str, Any]],
    state: Mapping[str, Array],
    stages: Sequence[StoredStage],
    foreign: Mapping[str, tuple[str, ...]],
    warning: str,
    device: torch.device,
) -> StagedProgram:
    """Return a program from the records of a plan's folder."""
    ends = ProgramEnds(
        tuple(ProgramEnd(*argument) for argument in arguments),
        tuple(ProgramEnd(result["kind"], result["name"]) for result in results),
    )
    found = [(result["number"], result["value"]) for result in results]
    function = StagedFunction([stage.call(device) for stage in stages], found, device)
    signatures = {n: stage.signature for n, stage in enumerate(stages) if stage.signature is not None}
    archives = {n: stage.archive for n, stage in enumerate(stages) if stage.archive is not None}
    held = {key: state_tensor(array, device) for key, array in state.items()}
    return StagedProgram(name, ends, inputs, held, function, signatures, foreign, warning, archives)


def array_results(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return results with arrays on the host for tensors."""
    return {name: array_of(value) if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def state_tensor(value: Array, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor of its own on a device."""
    return tensor_of_array(np.array(value)).to(device)


def type_of_tensor(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor."""
    return TensorType(dtype_of(tensor.dtype), tuple(tensor.shape))


def _tensor_on(value: Any, device: torch.device) -> torch.Tensor:
    """Return an input as a tensor on a device, without a copy where it lies there."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if hasattr(value, "__cuda_array_interface__"):
        return torch.as_tensor(value, device=device)
    array = np.asarray(value)
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return tensor_of_array(array if plain else array.copy()).to(device)


def _copy_of(value: Any, storages: set[int]) -> Any:
    """Return a result, copied where it lies in the memory of an argument."""
    shared = isinstance(value, torch.Tensor) and value.numel() and value.untyped_storage().data_ptr() in storages
    return value.clone() if shared else value


def _named_arrays(signature: GraphSignature, operands: Sequence[Any]) -> dict[str, Array]:
    """Return the operands of a compiled stage as the inputs of its plan."""
    found: dict[str, Array] = {}
    for name, value in zip(signature.inputs, operands, strict=True):
        if name is not None:
            found[name] = array_of(value.permute(signature.orders[name]) if name in signature.orders else value)
    return found | {name: np.asarray(number, np.uint32) for number, name in enumerate(signature.seeds)}


def _export(module: Any) -> bytes:
    places = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    if not all(isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape) for value in places):
        raise PlanError("a stage of PyTorch reads values whose shapes depend on data, so that it cannot be stored")
    examples = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in places]
    content = io.BytesIO()
    try:
        with torch.no_grad():
            torch.export.save(torch.export.export(module, tuple(examples)), content)
    except Exception as error:  # of any kind: tracing runs the operations
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise PlanError(f"a stage of PyTorch cannot be stored: {first}") from error
    return content.getvalue()
