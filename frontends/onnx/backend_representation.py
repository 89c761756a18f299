"""ONNX's backend interface over our graphs, compiled at the first run.

A model is compiled for the shapes of a run. `ReferenceBackend` computes with the float64 reference of the declarations;
a compiling backend overrides `compile_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from attrs import frozen
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

from ...ir import Array, CutsError, Graph, GraphError, Infer, TensorType, dtype_of_numpy
from ...ops import Registry, evaluate_graph
from .load import load_onnx_for

#: Computes the outputs of a graph from its inputs.
Runner: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Any]]


@frozen
class Specialisation:
    """Model compiled for some inputs: their types and specialised values."""

    types: Mapping[str, TensorType]
    known: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Runner

    def fits(self, arrays: Mapping[str, Array]) -> bool:
        """Return whether the model is compiled for these inputs."""
        return self.types == types_of(arrays) and all(
            np.array_equal(value, arrays[name]) for name, value in self.known.items()
        )


class CompiledModel(BackendRep):
    """Model ready to run, compiled once for every set of input shapes."""

    def __init__(self, model: onnx.ModelProto, compile_graph: Callable[[Graph], Runner]) -> None:
        self._model = model
        self._compile = compile_graph
        self._prepared: list[Specialisation] = []
        fixed = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value.name for value in model.graph.input if value.name not in fixed]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs in order, for inputs in order or by name."""
        given = inputs if isinstance(inputs, Mapping) else dict(zip(self._inputs, inputs, strict=False))
        arrays = {name: as_array(name, value) for name, value in given.items()}
        prepared = self.prepare(arrays)
        found = prepared.run({name: arrays[name] for name in prepared.inputs})
        return tuple(np.asarray(found[name]) for name in prepared.outputs)

    def prepare(self, arrays: Mapping[str, Array]) -> Specialisation:
        """Return the model compiled for inputs, cached where it exists."""
        found = next((p for p in self._prepared if p.fits(arrays)), None)
        if found is None:
            found = prepare_model(self._model, arrays, self._compile)
            self._prepared.append(found)
        return found


def prepare_model(
    model: onnx.ModelProto,
    arrays: Mapping[str, Array],
    compile_graph: Callable[[Graph], Runner],
    declared: Collection[str] = (),
    fixable: Collection[str] | None = None,
    infer: Infer | None = None,
) -> Specialisation:
    """Compile a model for inputs.

    `fixable` are the inputs whose values it may be specialised for, all where it is None.
    """
    graph, known = load_onnx_for(model, arrays, infer, declared, fixable)
    return Specialisation(types_of(arrays), known, graph.inputs, graph.outputs, compile_graph(graph))


class ReferenceBackend(Backend):
    """ONNX's backend interface on the float64 reference."""

    @classmethod
    def compile_graph(cls, graph: Graph) -> Runner:
        """Return the runner of a graph."""

        def run(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
            values = evaluate_graph(graph, Registry.builtin(), arrays)
            with np.errstate(over="ignore", invalid="ignore"):
                return {name: np.asarray(value).astype(graph.types[name].dtype.numpy) for name, value in values.items()}

        return run

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on a device of this kind ("CPU", "CUDA")."""
        return device.split(":")[0] == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> CompiledModel:
        """Return a model ready to run."""
        return CompiledModel(model, cls.compile_graph)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Run a model once."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run a single node on arrays."""
        names = [name for name in node.input if name]
        arrays = {name: as_array(name, value) for name, value in zip(names, inputs, strict=True)}
        make = onnx.helper.make_tensor_value_info
        code = onnx.helper.np_dtype_to_tensor_dtype
        given = [make(name, code(array.dtype), array.shape) for name, array in arrays.items()]
        results = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
        opset = onnx.helper.make_opsetid(node.domain, kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        return cls.run_model(
            onnx.helper.make_model(onnx.helper.make_graph([node], "node", given, results), opset_imports=[opset]),
            arrays,
        )


def types_of(arrays: Mapping[str, Array]) -> dict[str, TensorType]:
    """Return the types of arrays by name."""
    found = {name: (dtype_of_numpy(array.dtype), array.shape) for name, array in arrays.items()}
    return {name: TensorType(dtype, shape) for name, (dtype, shape) in found.items() if dtype is not None}


def as_array(name: str, value: Any) -> Array:
    """Return an input as an array.

    ONNX's suite gives some as protocol buffers.

    Raises `GraphError` where the value is no tensor, or its element type is not supported.
    """
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)) and not np.isscalar(value):
        raise GraphError(f"input '{name}': expected a tensor, found {type(value).__name__}")
    array: Array = np.asarray(value)
    if dtype_of_numpy(array.dtype) is None:
        raise GraphError(f"input '{name}': element type {array.dtype} is not supported")
    return array


def out_of_scope(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> str:
    """Return the reason against importing a model, or an empty text."""
    try:
        load_onnx_for(model, {name: as_array(name, value) for name, value in inputs.items()})
    except CutsError as error:
        return str(error)
    return ""
