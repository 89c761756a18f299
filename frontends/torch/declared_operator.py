"""Declarations as operators of PyTorch, with kernels and derived gradient.

A declaration `my_op` becomes `torch.ops.cuts.my_op`, and its gradient `torch.ops.cuts.my_op_backward`. Both are opaque
to PyTorch and known to this importer: in a model that `cuts` compiles they are operations like any other, and fuse with
their neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from ...ir import Attribute, DType, Graph, Node, TensorType, UsageError, attributes_key, quote, verify_graph
from ...ops import Registry
from ...ops.gradient import Gradients
from ...ops.language import Instance, OpDecl, syntax
from .captured_graph import CapturedGraph, captured_graph
from .import_context import TORCH_TYPES, ImportContext, Value, dtype_of
from .program import CompileGraph
from .tensors import function_of_tensors

NAMESPACE = "cuts"
#: Kinds of attributes in a schema.
_KINDS = {
    "int": "int", "axis": "int", "float": "float", "bool": "bool", "string": "str", "choice": "str",
    "dtype": "ScalarType", "ints": "int[]", "axes": "int[]", "floats": "float[]", "strings": "str[]",
}  # fmt: skip

Types = Sequence[TensorType | None]


@frozen
class BackwardCall:
    """Arguments of a backward operator.

    It computes the gradients of the operands `wanted`, given those of the results `given`.
    """

    operands: tuple[TensorType | None, ...]
    attributes: Mapping[str, Attribute]
    wanted: tuple[str, ...]
    given: tuple[str, ...]

    def text(self) -> str:
        """Return the string that the operator takes."""
        operands = [None if t is None else [t.dtype.value, list(t.shape)] for t in self.operands]
        return json.dumps([operands, dict(self.attributes), self.wanted, self.given])

    @staticmethod
    def parse(text: str) -> BackwardCall:
        """Return the call of a `text`."""
        operands, attributes, wanted, given = json.loads(text)
        types = tuple(None if t is None else TensorType(DType(t[0]), tuple(t[1])) for t in operands)
        return BackwardCall(types, plain(attributes), tuple(wanted), tuple(given))


@define(eq=False)
class DeclaredOperator:
    """Operator of a declaration: its vocabulary texts and its compiler."""

    name: str
    decl: OpDecl
    registry: Registry
    texts: Mapping[str, str]
    compile_graph: CompileGraph
    compiled: dict[object, Callable[..., list[Any]]] = field(factory=dict)
    instances: dict[object, Instance] = field(factory=dict)
    lock: Any = field(factory=Lock)

    # ---- registration

    @property
    def schema(self) -> str:
        """Schema: operands by position, attributes by name, defaults optional."""
        operands = [_parameter(self.decl.operands[n:]) for n in range(len(self.decl.operands))]
        named = []
        for name, item in self.decl.attributes.items():
            kind = _KINDS[item.type.kind]
            named.append(f"{kind} {name}" if item.default is None else f"{kind}? {name}=None")
        star = ["*"] if named else []
        return f"({', '.join([*operands, *star, *named])}) -> {self._returned}"

    @property
    def _returned(self) -> str:
        if any(result.binder for result in self.decl.results):
            return "Tensor[]"
        return "Tensor" if len(self.decl.results) == 1 else f"({', '.join('Tensor' for _ in self.decl.results)})"

    def pack_results(self, results: Sequence[Any]) -> Any:
        """Return results in the form of the schema."""
        return list(results) if self._returned == "Tensor[]" else results[0] if len(results) == 1 else tuple(results)

    # ---- forward

    def forward(self, *operands: Any, **attributes: Any) -> Any:
        """Run the operation's kernels."""
        tensors = self.flatten_operands(operands)
        given = plain(attributes)
        types = tuple(map(_type, tensors))
        return self.pack_results(
            self._run(("forward", types, _key(given)), tensors, lambda: self._forward(types, given))
        )

    def fake(self, *operands: Any, **attributes: Any) -> Any:
        """Return results with types and without elements."""
        tensors = self.flatten_operands(operands)
        device = _device(self.decl.name, tensors)
        instance = self.instance(tuple(map(_type, tensors)), plain(attributes))
        return self.pack_results([empty_tensor(type_, device) for type_ in instance.output_types])

    def instance(self, types: Types, attributes: Mapping[str, Attribute]) -> Instance:
        """Return the instance of the operation for operand types."""
        key = tuple(types), attributes_key(attributes)
        if key not in self.instances:
            self.instances[key] = self.decl.instantiate(types, attributes)
        return self.instances[key]

    def _forward(self, types: Types, attributes: Mapping[str, Attribute]) -> CapturedGraph:
        instance = self.instance(types, attributes)
        node = Node(self.decl.name, self.decl.name, instance.inputs, instance.outputs, attributes)
        known = {name: type_ for name, type_ in zip(instance.inputs, types, strict=True) if name and type_}
        known |= zip(instance.outputs, instance.output_types, strict=True)
        inputs = tuple(name for name in instance.inputs if name is not None)
        graph = Graph(self.decl.name, inputs, instance.outputs, known, (node,), {})
        checked = verify_graph(graph, self.registry.instances.infer)
        return CapturedGraph(checked, instance.inputs, instance.outputs, (), self.registry, self.texts)

    # ---- backward

    def save_for_backward(
        self, context: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None
    ) -> None:
        """Save the tensors that the derived gradient reads for the backward pass."""
        tensors, results = (
            self.flatten_operands(inputs),
            list(output) if isinstance(output, (list, tuple)) else [output],
        )
        types, attributes = tuple(map(_type, tensors)), plain(keyword_only_inputs or {})
        instance = self.instance(types, attributes)
        formals = dict(zip(instance.inputs, tensors, strict=True))
        wanted = tuple(name for name, t in formals.items() if name and t is not None and t.requires_grad)
        given = tuple(n for n, t in zip(instance.outputs, instance.output_types, strict=True) if t.dtype.is_float)
        context.problem = BackwardCall(types, attributes, wanted, given)
        context.read = self.backward_graph(context.problem).graph.inputs if wanted and given else ()
        values: dict[str | None, Any] = {**formals, **dict(zip(instance.outputs, results, strict=True))}
        context.save_for_backward(*(values[name] for name in context.read if name in values))
        context.results = instance.outputs
        context.lists = [isinstance(value, (list, tuple)) for value in inputs]
        context.counts = [len(value) if isinstance(value, (list, tuple)) else 1 for value in inputs]
        context.formals = instance.inputs

    def backward(self, context: Any, *gradients: Any) -> Any:
        """Return the gradients of the operands, as autograd asks for them."""
        flat = list(gradients[0]) if self._returned == "Tensor[]" else list(gradients)
        found: dict[str, Any] = {}
        if context.read:
            seeds = {f"d{name}": g for name, g in zip(context.results, flat, strict=True)}
            saved = iter(context.saved_tensors)
            values = [seeds[name] if name in seeds else next(saved) for name in context.read]
            operator = getattr(getattr(torch.ops, NAMESPACE), f"{self.name}_backward")
            found = dict(zip(context.problem.wanted, operator(values, context.problem.text()), strict=True))
        elif context.problem.wanted:  # they depend on nothing, as those of no elements do
            types = dict(zip(context.formals, context.problem.operands, strict=True))
            device = next(g.device for g in flat if g is not None)
            found = {n: torch.zeros_like(empty_tensor(t, device)) for n in context.problem.wanted if (t := types[n])}
        formals = iter(context.formals)
        each = [[found.get(next(formals)) for _ in range(count)] for count in context.counts]
        found_by_argument = tuple(g if many else g[0] for g, many in zip(each, context.lists, strict=True))
        return found_by_argument if len(found_by_argument) > 1 else found_by_argument[0]

    def refuse(self, context: Any, *gradients: Any) -> Any:
        """Raise `UsageError`: the gradient of the gradient is not derived."""
        raise UsageError(
            f"operation {quote(self.decl.name)}: the gradient of its gradient is not derived",
            hint="leave create_graph=True out, or write the operation with PyTorch's own where that is needed",
        )

    def run_backward(self, saved: Sequence[Any], problem: str) -> list[Any]:
        """Run the gradient's kernels."""
        return self._run(("backward", problem), saved, lambda: self.backward_graph(BackwardCall.parse(problem)))

    def fake_backward(self, saved: Sequence[Any], problem: str) -> list[Any]:
        """Return gradients with types and without elements."""
        parsed = BackwardCall.parse(problem)
        types = dict(zip(self.instance(parsed.operands, parsed.attributes).inputs, parsed.operands, strict=True))
        return [empty_tensor(type_, saved[0].device) for name in parsed.wanted if (type_ := types[name]) is not None]

    def backward_graph(self, problem: BackwardCall) -> CapturedGraph:
        """Return the graph of a gradient.

        Its inputs are the operands and results that it reads, and the gradients `dy`.
        """
        ctx = ImportContext(self.registry.instances.infer, gradients=Gradients(self.registry, dict(self.texts)))
        instance = self.instance(problem.operands, problem.attributes)
        values = dict(zip(instance.inputs, problem.operands, strict=True))
        values |= zip(instance.outputs, instance.output_types, strict=True)
        values |= {f"d{name}": values[name] for name in problem.given}
        ctx.types.update((name, type_) for name, type_ in values.items() if name is not None and type_ is not None)
        ctx.used_names.update(ctx.types)
        names = {name: Value(name) for name in ctx.types}
        found = gradients_of(ctx, instance, names, problem)
        outputs = tuple(ctx.output(value, f"d{name}") for name, value in zip(problem.wanted, found, strict=True))
        whole = captured_graph(ctx, self.decl.name, tuple(names), outputs)
        return evolve(whole, inputs=whole.graph.inputs)

    # ---- both

    def flatten_operands(self, operands: Sequence[Any]) -> list[Any]:
        """Return operands one by one, None for absent ones at the end."""
        found = [t for o in operands for t in (o if isinstance(o, (list, tuple)) else [o])]
        return [*found, *(None for _ in self.decl.operands[len(operands) :])]

    def _run(self, key: object, tensors: Sequence[Any], captured: Callable[[], CapturedGraph]) -> list[Any]:
        device = _device(self.decl.name, tensors)
        with self.lock:
            if (key, device) not in self.compiled:
                self.compiled[key, device] = function_of_tensors(captured(), device, self.compile_graph)
        return self.compiled[key, device](*tensors)


def gradients_of(
    ctx: ImportContext, instance: Instance, names: Mapping[str, Value], problem: BackwardCall
) -> list[Value]:
    """Add the gradients of a problem to a graph, zeros without one."""
    made = ctx.add_steps(ctx.gradients.steps(instance, problem.wanted, problem.given), names)
    return [made.get(f"d{name}") or ctx.zeros_like(names[name]) for name in problem.wanted]


def _parameter(operands: Sequence[syntax.Operand]) -> str:
    """Return the first of some operands as a schema has it; a trailing optional one gets a default."""
    first, *_ = operands
    kind = "Tensor[]" if first.variadic else "Tensor?" if first.optional else "Tensor"
    return f"{kind} {first.name}{'=None' if all(o.optional for o in operands) else ''}"


def _type(tensor: Any) -> TensorType | None:
    return None if tensor is None else TensorType(dtype_of(tensor.dtype), tuple(int(n) for n in tensor.shape))


def empty_tensor(type_: TensorType, device: torch.device) -> torch.Tensor:
    """Return a tensor with undefined elements."""
    return torch.empty(type_.shape, dtype=TORCH_TYPES[type_.dtype], device=device)


def _device(name: str, tensors: Sequence[Any]) -> torch.device:
    """Return the device of the operands; raise `UsageError` where there are several."""
    found = list(dict.fromkeys(t.device for t in tensors if t is not None))
    if len(found) > 1:
        raise UsageError(
            f"operation {quote(name)}: its operands lie on {' and '.join(map(str, found))}", hint="move them to one"
        )
    return found[0] if found else torch.device("cpu")


def plain(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return the given attributes, element types by our names, lists as tuples."""
    return {name: _plain(value) for name, value in attributes.items() if value is not None}


def _plain(value: Any) -> Attribute:
    if isinstance(value, torch.dtype):
        return dtype_of(value).value
    return tuple(value) if isinstance(value, list) else value


def _key(attributes: Mapping[str, Attribute]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))
