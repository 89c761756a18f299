"""ONNX models with operations outside the vocabulary, cut into stages.

Only those operations run uncompiled (`foreign_nodes.py`). A part is compiled when it first runs, for the shapes that it
then gets: results of foreign operations may have any shape. A node of a supported operation can have an unsupported
form (a computed condition, say); that shows when its part is imported, and the model is then cut there too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import onnx
from attrs import define, evolve, field, frozen
from onnx import numpy_helper

from ...ir import Array, Graph, GraphError, Infer, TensorType, VocabularyError, dtype_of_numpy, quote
from .backend_representation import Runner, Specialisation, as_array, prepare_model
from .foreign_nodes import ForeignNodes, Function, OpenRuntime
from .protos import OnnxModel, initialisers, input_types, opset_of, read_model, values_read
from .stages import Borders, ForeignStage, first_result, op_name, stages_of

#: Computes the results of a compiled part from its inputs.
Execute: TypeAlias = Callable[[Specialisation, Mapping[str, Array]], Mapping[str, Any]]

#: Elements up to which integers (a shape, axes, a choice) may specialise a part; larger values are data.
_MAX_SPECIALISED_ELEMENTS = 64


class OpaqueWarning(UserWarning):
    """Warns that operations outside the vocabulary run uncompiled."""


@frozen
class PartKey:
    """Key of a part: first results of its nodes, and outputs."""

    nodes: tuple[str, ...]
    outputs: tuple[str, ...]


def execute_prepared(prepared: Specialisation, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
    """Run a compiled part."""
    return prepared.run({name: arrays[name] for name in prepared.inputs})


@define
class StagedModel:
    """Model in stages, ready to run.

    Parts are compiled as they are reached and cached by their input types. `time_share` is the share of a run's time
    that foreign operations take, None before there was a run that compiled nothing.
    """

    model: OnnxModel
    weights: Mapping[str, Array] = field(repr=False)
    borders: Borders
    compile_graph: Callable[[Graph], Runner]
    evaluator: ForeignNodes
    infer: Infer | None = None
    stages: tuple[ForeignStage, ...] = ()
    compiled: dict[PartKey, list[Specialisation]] = field(factory=dict, repr=False)
    time_share: float | None = None

    def __attrs_post_init__(self) -> None:
        self.stages = stages_of(self.model, self.weights, self.borders)

    @property
    def foreign(self) -> dict[str, list[str]]:
        """The operations outside the vocabulary, with the names of their nodes."""
        found: dict[str, list[str]] = {}
        for node in (node for stage in self.stages for node in stage.foreign):
            if self.borders.is_foreign(node, opset_of(node, self.model.opset)):
                found.setdefault(op_name(node), []).append(node.name or first_result(node))
        return found

    @property
    def warning(self) -> str:
        """Sentence that lists all uncompiled operations, empty without any."""
        foreign = self.foreign
        if not foreign:
            return ""
        listed = "; ".join(f"{op} ({_quoted_names(names)})" for op, names in sorted(foreign.items()))
        count, runs = ("1 operation is", "runs") if len(foreign) == 1 else (f"{len(foreign)} operations are", "run")
        nodes = {first_result(node) for stage in self.stages for node in (*stage.part, *stage.foreign)}
        uncompiled = sum(len(stage.foreign) for stage in self.stages)
        share = f"{uncompiled} of {len(nodes)} nodes, {uncompiled / len(nodes):.1%}"
        return f"{count} outside the vocabulary and {runs} uncompiled ({share}): {listed}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(value.name for value in self.model.graph.input if value.name not in self.weights)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return tuple(value.name for value in self.model.graph.output)

    def input_types(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
        """Return the types of the inputs; `shapes` fixes dynamic ones."""
        return input_types(self.model, self.weights, shapes)

    def cut_at(self, nodes: Iterable[str]) -> None:
        """Let further nodes, named by their first results, run uncompiled."""
        self.borders = evolve(self.borders, opaque=self.borders.opaque | set(nodes))
        self.stages = stages_of(self.model, self.weights, self.borders)

    def run(self, inputs: Mapping[str, Any], execute: Execute = execute_prepared) -> dict[str, Array]:
        """Return the outputs by name; `execute` runs the compiled parts.

        Raises `GraphError` where an input has no value.
        """
        missing = [name for name in self.inputs if name not in inputs]
        if missing:
            raise GraphError(f"no value for input {', '.join(map(quote, missing))}")
        given = {name: as_array(name, inputs[name]) for name in self.inputs}
        while True:
            try:
                return self._run(given, execute)
            except VocabularyError as error:
                if set(error.nodes) <= self.borders.opaque:
                    raise
                self.cut_at(error.nodes)

    def _run(self, given: Mapping[str, Array], execute: Execute) -> dict[str, Array]:
        values: dict[str, Any] = {**self.weights, **given}
        start, foreign, prepared = perf_counter(), 0.0, sum(map(len, self.compiled.values()))
        for number, stage in enumerate(self.stages):
            later = [node for following in self.stages[number + 1 :] for node in (*following.part, *following.foreign)]
            if stage.part:
                values |= self._run_part(
                    stage.part, values, values_read([*stage.foreign, *later]) | set(self.outputs), execute
                )
            began = perf_counter()
            for node in stage.foreign:
                values |= self.evaluator.run(node, values)
            foreign += perf_counter() - began
        if prepared == sum(map(len, self.compiled.values())):
            self.time_share = foreign / (perf_counter() - start)
        return {name: np.asarray(values[name]) for name in self.outputs}

    def _run_part(
        self, nodes: tuple[onnx.NodeProto, ...], values: Mapping[str, Any], wanted: Collection[str], execute: Execute
    ) -> dict[str, Any]:
        made = [name for node in nodes for name in node.output if name]
        outputs = tuple(name for name in made if name in wanted)
        arrays = {
            name: values[name] for name in sorted(values_read(nodes) - set(made) - set(self.weights)) if name in values
        }
        if foreign := {name: kind for name, value in arrays.items() if (kind := _foreign_kind(value))}:
            readers = [first_result(node) for node in nodes if values_read([node]) & set(foreign)]
            raise VocabularyError(
                [GraphError(f"value {quote(name)} is {kind}") for name, kind in foreign.items()], readers
            )
        arrays = {name: as_array(name, value) for name, value in arrays.items()}
        compiled = self.compiled.setdefault(PartKey(tuple(map(first_result, nodes)), outputs), [])
        prepared = next((p for p in compiled if p.fits(arrays)), None)
        if prepared is None:
            fixable = [
                name
                for name, array in arrays.items()
                if array.dtype.kind in "iub" and array.size <= _MAX_SPECIALISED_ELEMENTS
            ]
            model = self._submodel(nodes, arrays, outputs)
            prepared = prepare_model(model, arrays, self.compile_graph, self.borders.declared, fixable, self.infer)
            compiled.append(prepared)
        return dict(execute(prepared, arrays))

    def _submodel(
        self, nodes: tuple[onnx.NodeProto, ...], arrays: Mapping[str, Array], outputs: Iterable[str]
    ) -> onnx.ModelProto:
        code = onnx.helper.np_dtype_to_tensor_dtype
        given = [
            onnx.helper.make_tensor_value_info(name, code(array.dtype), array.shape) for name, array in arrays.items()
        ]
        results = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        used = values_read(nodes)
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items() if name in used]
        return self._model(
            onnx.helper.make_graph(list(nodes), self.model.graph.name or "part", given, results, weights)
        )

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        opsets = [onnx.helper.make_opsetid(*opset) for opset in self.model.opsets.items()]
        return onnx.helper.make_model(graph, opset_imports=opsets)


def model_of_graph(data: bytes, opsets: Mapping[str, int], name: str) -> OnnxModel:
    """Return a model of a serialised graph.

    Raises `GraphError` where the data is damaged.
    """
    graph = onnx.GraphProto()
    try:
        graph.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, whose package carries no types
        raise GraphError(f"{name}: its ONNX graph is damaged") from None
    return OnnxModel(name, graph, opsets.get("", onnx.defs.onnx_opset_version()), None, opsets)


def _foreign_kind(value: Any) -> str:
    """Return the kind of a value that no part can read, else an empty text."""
    if isinstance(value, list):
        return "a sequence of tensors"
    if value is None:
        return "an optional without a value"
    dtype = getattr(value, "dtype", None)
    return f"a tensor of {dtype}" if dtype is not None and dtype_of_numpy(dtype) is None else ""


def _quoted_names(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def staged_onnx(
    source: str | Path | bytes | onnx.ModelProto | OnnxModel,
    compile_graph: Callable[[Graph], Runner],
    functions: Mapping[str, Function] | None = None,
    declared: Iterable[str] = (),
    weights: Mapping[str, Array] | None = None,
    infer: Infer | None = None,
    open_runtime: OpenRuntime | None = None,
) -> StagedModel:
    """Return a model in stages.

    A function is used even for a supported operation. `declared` names operations of the caller's own. `open_runtime`
    opens nodes in ONNX Runtime.
    """
    given = dict(functions or {})
    model = source if isinstance(source, OnnxModel) else read_model(Path(source) if isinstance(source, str) else source)
    borders = Borders(frozenset(given), frozenset(declared))
    known = initialisers(model) if weights is None else weights
    return StagedModel(model, known, borders, compile_graph, ForeignNodes(model, given, open_runtime), infer)
