"""Evaluation of nodes outside the vocabulary.

The caller's function computes a node, else ONNX Runtime where it is installed and knows the operation, else ONNX's
reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
from attrs import define, field
from onnx.reference import ReferenceEvaluator

from ...ir import GraphError, quote
from .protos import OnnxModel, opset_of, unsupported_hint, values_read
from .stages import first_result, op_name

#: Computes a foreign operation: arrays in operand order (None where absent) and attributes by name to an array, or one
#: per result.
Function: TypeAlias = Callable[..., Any]
#: A model of one node as a function of its inputs.
Evaluate: TypeAlias = Callable[[Mapping[str, Any]], list[Any]]
#: Opens a serialised model in ONNX Runtime; None where that does not know it.
OpenRuntime: TypeAlias = Callable[[bytes], Evaluate | None]

#: Newest version of ONNX's file format that all supported versions of ONNX Runtime read.
_RUNTIME_IR_VERSION = 10


@define
class ForeignNodes:
    """Evaluator of a model's foreign nodes.

    `opened` has their functions in ONNX Runtime, None where it does not know one, by node and operand types.
    """

    model: OnnxModel
    functions: Mapping[str, Function]
    open_runtime: OpenRuntime | None = None
    opened: dict[tuple[object, ...], Evaluate | None] = field(factory=dict, repr=False)

    def run(self, node: onnx.NodeProto, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of a node by name.

        Raises `GraphError` where nothing can compute it.
        """
        function = self.functions.get(op_name(node))
        if function is not None:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            operands = [values[name] if name else None for name in node.input]
            found = function(*operands, **{k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()})
            results = list(found) if isinstance(found, (list, tuple)) else [found]
        else:
            operands_by_name = {name: values[name] for name in sorted(values_read([node])) if name in values}
            results = self._run_in_runtime(node, operands_by_name) or self._evaluate(node, operands_by_name)
        names = [name for name in node.output if name]
        return dict(zip(names, results, strict=False))

    def _run_in_runtime(self, node: onnx.NodeProto, operands: Mapping[str, Any]) -> list[Any] | None:
        if self.open_runtime is None:
            return None
        types = {name: _type_of(value) for name, value in operands.items()}
        known = {name: type_ for name, type_ in types.items() if type_ is not None}
        key = (first_result(node), *((name, type_.SerializeToString()) for name, type_ in known.items()))
        if key not in self.opened:
            complete = len(known) == len(types)
            model = self._model_of(node, known, _RUNTIME_IR_VERSION)
            self.opened[key] = self.open_runtime(model.SerializeToString()) if complete else None
        evaluate = self.opened[key]
        try:
            return evaluate and evaluate(operands)
        except Exception:  # its bindings raise classes of their own; the evaluator's message is better
            return None

    def _evaluate(self, node: onnx.NodeProto, operands: Mapping[str, Any]) -> list[Any]:
        model = self._model_of(node, dict.fromkeys(operands, onnx.TypeProto()))
        try:
            return list(ReferenceEvaluator(model).run(None, dict(operands)))
        except Exception as error:  # its kernels raise any exception of NumPy
            where = f"node {quote(node.name or first_result(node))} ({op_name(node)})"
            hint = unsupported_hint(
                op_name(node), "declare the operation in a .cuts file, or give build_staged a function for it"
            )
            raise GraphError(f"{where}: ONNX's reference evaluator cannot run it: {error}", hint=hint) from error

    def _model_of(
        self, node: onnx.NodeProto, operands: Mapping[str, onnx.TypeProto], version: int | None = None
    ) -> onnx.ModelProto:
        given = [onnx.helper.make_value_info(name, type_) for name, type_ in operands.items()]
        results = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "foreign", given, results)
        domain = "" if node.domain == "ai.onnx" else node.domain
        opsets = {domain: 1, **self.model.opsets, "": opset_of(node, self.model.opset)}
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(*o) for o in opsets.items()])
        made.ir_version = version or made.ir_version
        return made


def _type_of(value: Any) -> onnx.TypeProto | None:
    """Return the type of an operand with any shape, None where it has none in ONNX Runtime."""
    if isinstance(value, list):
        element = _type_of(value[0]) if value else None
        return element and onnx.helper.make_sequence_type_proto(element)
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    try:
        return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), None)
    except (KeyError, ValueError):
        return None
