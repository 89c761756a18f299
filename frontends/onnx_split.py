"""ONNX models with operations outside the vocabulary: cut into stages, so that only those operations run elsewhere.

A stage is a part that we compile, followed by the foreign nodes whose operands it completes. A part is compiled when it first runs, for the
shapes that it then gets: what foreign operations return may have any shape. They run through ONNX's reference evaluator, or through
a function that the caller gives for an operation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from attrs import field, frozen
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ..ir.errors import GraphError
from ..ir.graph import Array, Graph
from ..ir.verify_graph import quote
from .onnx import TABLE
from .onnx_backend import CompiledModel, Runner, as_array, types_of
from .onnx_model import Model, initialisers, read_model

#: Computes a foreign operation: arrays in operand order (None where absent) and attributes by name to an array, or one per result.
Function: TypeAlias = Callable[..., Any]


class OpaqueWarning(UserWarning):
    """Some operations of a model are outside the vocabulary and run uncompiled."""


@frozen
class Stage:
    """Nodes to compile together, then foreign nodes."""

    part: tuple[onnx.NodeProto, ...]
    foreign: tuple[onnx.NodeProto, ...]


@frozen
class SplitModel:
    """A model in stages, ready to run; parts are compiled as they are reached and kept by their input types."""

    graph: onnx.GraphProto
    opsets: Mapping[str, int]
    weights: Mapping[str, Array] = field(repr=False)
    stages: tuple[Stage, ...]
    compile_graph: Callable[[Graph], Runner]
    functions: Mapping[str, Function]
    compiled: dict[Any, CompiledModel] = field(factory=dict, repr=False)

    @property
    def foreign(self) -> dict[str, list[str]]:
        """The operations that run uncompiled, with the names of their nodes."""
        found: dict[str, list[str]] = {}
        for node in (node for stage in self.stages for node in stage.foreign):
            found.setdefault(_op(node), []).append(node.name or next(iter(node.output), ""))
        return found

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name."""
        expected = [value.name for value in self.graph.input if value.name not in self.weights]
        missing = [name for name in expected if name not in inputs]
        if missing:
            raise GraphError(f"no value for input {', '.join(map(quote, missing))}")
        values: dict[str, Any] = {**self.weights, **{name: as_array(name, inputs[name]) for name in expected}}
        outputs = [value.name for value in self.graph.output]
        for number, stage in enumerate(self.stages):
            later = [node for following in self.stages[number + 1 :] for node in (*following.part, *following.foreign)]
            if stage.part:
                values |= self._run_part(number, stage.part, values, _read([*stage.foreign, *later]) | set(outputs))
            for node in stage.foreign:
                values |= self._run_foreign(node, values)
        return {name: np.asarray(values[name]) for name in outputs}

    def _run_part(
        self, number: int, nodes: tuple[onnx.NodeProto, ...], values: Mapping[str, Any], wanted: Collection[str]
    ) -> dict[str, Any]:
        made = [name for node in nodes for name in node.output if name]
        outputs = [name for name in made if name in wanted]
        arrays = {name: values[name] for name in sorted(_read(nodes) - set(made) - set(self.weights)) if name in values}
        key = (number, types_of(arrays))
        if key not in self.compiled:
            self.compiled[key] = CompiledModel(self._submodel(nodes, arrays, outputs), self.compile_graph)
        return dict(zip(outputs, self.compiled[key].run(arrays), strict=True))

    def _submodel(self, nodes: tuple[onnx.NodeProto, ...], arrays: Mapping[str, Array], outputs: Iterable[str]) -> onnx.ModelProto:
        code = onnx.helper.np_dtype_to_tensor_dtype
        given = [onnx.helper.make_tensor_value_info(name, code(array.dtype), array.shape) for name, array in arrays.items()]
        results = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        used = _read(nodes)
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items() if name in used]
        return self._model(onnx.helper.make_graph(list(nodes), self.graph.name or "part", given, results, weights))

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()])

    def _run_foreign(self, node: onnx.NodeProto, values: Mapping[str, Any]) -> dict[str, Any]:
        operands = [values[name] if name else None for name in node.input]
        function = self.functions.get(_op(node))
        if function is not None:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            found = function(*operands, **{k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()})
            results = list(found) if isinstance(found, (list, tuple)) else [found]
        else:
            results = self._evaluate(node, operands)
        names = [name for name in node.output if name]
        return dict(zip(names, results, strict=False))

    def _evaluate(self, node: onnx.NodeProto, operands: list[Any]) -> list[Any]:
        names = [name for name in node.input if name]
        make = onnx.helper.make_value_info
        graph = onnx.helper.make_graph(
            [node], "foreign", [make(n, onnx.TypeProto()) for n in names], [make(n, onnx.TypeProto()) for n in node.output if n]
        )
        try:
            found = ReferenceEvaluator(self._model(graph)).run(None, {n: v for n, v in zip(node.input, operands, strict=True) if n})
        except Exception as error:  # its kernels raise whatever NumPy raises
            where = f"node {quote(node.name or next(iter(node.output), ''))} ({_op(node)})"
            raise GraphError(f"{where}: ONNX's reference evaluator cannot run it: {error}", hint="give a function for it") from error
        return list(found)


def split_onnx(
    source: str | Path | bytes | onnx.ModelProto,
    compile_graph: Callable[[Graph], Runner],
    functions: Mapping[str, Function] | None = None,
) -> SplitModel:
    """Return a model in stages; one warning lists the operations that run uncompiled. A function is used even for an operation we know."""
    model = read_model(Path(source) if isinstance(source, str) else source)
    weights = initialisers(model)
    stages = _stages(model, set(weights), set(functions or {}))
    result = SplitModel(model.graph, model.opsets, weights, stages, compile_graph, dict(functions or {}))
    if result.foreign:
        listed = "; ".join(f"{op} ({', '.join(map(quote, names[:8]))})" for op, names in sorted(result.foreign.items()))
        count = "1 operation is" if len(result.foreign) == 1 else f"{len(result.foreign)} operations are"
        warnings.warn(
            f"{count} outside the vocabulary and run{'s' * (count[0:2] == '1 ')} uncompiled: {listed}", OpaqueWarning, stacklevel=3
        )
    return result


def _stages(model: Model, constant: set[str], given: Collection[str]) -> tuple[Stage, ...]:
    """Number nodes by how many foreign ones lie in front of them; a node that needs none belongs to stage 0."""
    outputs = {value.name for value in model.graph.output}
    nodes = _behind(list(model.graph.node), set(outputs))
    available: dict[str, int] = {}
    parts: dict[int, tuple[list[onnx.NodeProto], list[onnx.NodeProto]]] = {}
    shared: list[onnx.NodeProto] = []  # made of constants alone: every stage that reads such a node takes it along
    for node in nodes:
        reads = _read([node]) - constant
        foreign = _op(node) in given or not (not reads or _is_known(node, model.opset))
        if not reads and not foreign:
            constant.update(node.output)
            shared.append(node)
            continue
        stage = max((available.get(name, 0) for name in reads), default=0)
        parts.setdefault(stage, ([], []))[foreign].append(node)
        available.update(dict.fromkeys(node.output, stage + foreign))
    return tuple(
        Stage((*_behind(shared, _read([*part, *foreign_nodes]) | outputs), *part), tuple(foreign_nodes))
        for _, (part, foreign_nodes) in sorted(parts.items() or [(0, ([], []))])
    )


def _behind(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.insert(0, node)
            wanted |= _read([node])
    return kept


def _is_known(node: onnx.NodeProto, version: int) -> bool:
    """Whether the tables, or a function body of the standard over them, have an operation."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in TABLE or node.op_type in ("If", "Scan"):
        return True
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return False
    if schema.has_function:
        return all(_is_known(inner, version) for inner in schema.function_body.node)
    return bool(schema.has_context_dependent_function) and node.op_type not in ("Bernoulli", "SequenceMap")


def _read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return the values that nodes read, those of their subgraphs included."""
    found: set[str] = set()
    for node in nodes:
        found.update(name for name in node.input if name)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = {name for each in attribute.g.node for name in each.output} | {t.name for t in attribute.g.initializer}
                found |= (_read(attribute.g.node) | {v.name for v in attribute.g.output}) - inner - {v.name for v in attribute.g.input}
    return found


def _op(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
