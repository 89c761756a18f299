"""Import context of a PyTorch graph: values by node, graph builder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, evolve, field

from ...ir import (
    Array,
    Attribute,
    DType,
    Graph,
    GraphError,
    Infer,
    Interface,
    Node,
    SymbolicShapeError,
    TensorType,
    as_dtype,
    dtype_of_numpy,
    fresh_name,
    live_graph,
)
from ...ops import Registry
from ...ops.gradient import Gradients
from ...ops.symbolic import ComputedSizes
from .scalars import Number, convert_checked, convert_wrapping

DTYPES = {
    torch.float64: DType.F64, torch.float32: DType.F32, torch.float16: DType.F16, torch.bfloat16: DType.BF16,
    torch.float8_e4m3fn: DType.F8E4M3,
    torch.float8_e5m2: DType.F8E5M2,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int16: DType.I16, torch.int8: DType.I8, torch.uint8: DType.U8, torch.bool: DType.BOOL,
}  # fmt: skip


#: Types that PyTorch gives NumPy as bits only, and types of these.
BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
#: PyTorch's names of our element types.
TORCH_TYPES = {ours: theirs for theirs, ours in DTYPES.items()}


class Value(str):
    """Name of a tensor of the graph, for conversions."""

    __slots__ = ()


def dtype_of(kind: torch.dtype) -> DType:
    """Return the element type of a PyTorch type.

    Raises `GraphError` for an unsupported one.
    """
    if kind not in DTYPES:
        raise GraphError(
            f"element type {kind} is not supported", hint="convert the model to float32, float16 or bfloat16"
        )
    return DTYPES[kind]


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor's elements on the host."""
    kind = dtype_of(tensor.dtype)
    held = tensor.clone() if tensor._is_zerotensor() else tensor
    plain = held.detach().cpu().contiguous().resolve_conj().resolve_neg()
    array = plain.view(BITS[plain.dtype]).numpy().view(kind.numpy) if plain.dtype in BITS else plain.numpy()
    return np.ascontiguousarray(array).reshape(tuple(tensor.shape))


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor, the outermost in memory first.

    They stay in order where it is not dense in any order.
    """
    plain = tuple(range(tensor.dim()))
    strides = tensor.stride()
    order = tuple(sorted(plain, key=lambda axis: (-strides[axis], axis)))
    return plain if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


@define
class ImportContext:
    """State of one import."""

    infer: Infer
    types: dict[str, TensorType] = field(factory=dict)
    constants: dict[str, Array] = field(factory=dict)
    nodes: list[Node] = field(factory=list)
    values: dict[torch.fx.Node, Any] = field(factory=dict)
    unknown: set[torch.fx.Node] = field(factory=set)
    origin: str = ""
    node: torch.fx.Node | None = None
    used_names: set[str] = field(factory=set)
    seeds: list[str] = field(factory=list)
    orders: dict[str, tuple[int, ...]] = field(factory=dict)
    gradients: Gradients = field(factory=lambda: Gradients(Registry.builtin()))
    computed: ComputedSizes | None = None

    def fail(self, message: str) -> NoReturn:
        """Raise a `GraphError` about the node at hand."""
        raise GraphError(message)

    # ---- values

    def define_input(self, node: torch.fx.Node, keep_layout: bool = False) -> None:
        """Define an input.

        With `keep_layout`, its axes are in the memory order of the example.

        Raises `GraphError` where it is no tensor, and `SymbolicShapeError` where its shape is dynamic.
        """
        example = node.meta.get("val")
        if not isinstance(example, torch.Tensor):
            raise GraphError(f"input '{node.name}': expected a tensor, found {type(example).__name__}")
        if not all(isinstance(extent, int) for extent in example.shape):
            raise SymbolicShapeError(
                f"input '{node.name}': shape {tuple(example.shape)} is dynamic", hint="export with static shapes"
            )
        order = memory_order(example) if keep_layout else tuple(range(example.dim()))
        try:
            kind = dtype_of(example.dtype)
        except GraphError as error:
            raise GraphError(f"input '{node.name}': {error.message}", hint=error.hint) from None
        self.types[node.name] = TensorType(kind, tuple(example.shape[axis] for axis in order))
        self.used_names.add(node.name)
        self.values[node] = Value(node.name)
        if order != tuple(range(len(order))):
            self.orders[node.name] = order
            self.origin = node.name
            back = tuple(order.index(axis) for axis in range(len(order)))
            self.values[node] = self.emit("transpose", node.name, perm=back)

    def define_constant(self, node: torch.fx.Node, array: Array) -> None:
        """Define a parameter."""
        self.values[node] = self.constant(array, node.name)

    def part(self, hint: str, type_: TensorType) -> Value:
        """Return a value that a loop body gets at each iteration."""
        name = self.fresh(f"{self.origin}.{hint}")
        self.types[name] = type_
        return Value(name)

    def seed(self) -> Value:
        """Return a new input that each run fills with a random number."""
        name = self.fresh("seed")
        self.types[name] = TensorType(DType.U32, ())
        self.seeds.append(name)
        return Value(name)

    def value(self, node: torch.fx.Node) -> Any:
        """Return the value of a node.

        Raises `GraphError` where the node could not be imported.
        """
        if node not in self.values:
            raise GraphError(f"'{node.name}' is a value that could not be imported")
        return self.values[node]

    def argument(self, argument: Any) -> Any:
        """Return an argument with nodes replaced by values."""
        if isinstance(argument, torch.fx.Node):
            return self.value(argument)
        if isinstance(argument, (list, tuple)):
            return [self.argument(a) for a in argument]
        return argument

    def type(self, value: str) -> TensorType:
        """Return the type of a value."""
        return self.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.types[value].shape

    # ---- building

    def constant(self, array: npt.ArrayLike, hint: str = "", dtype: DType | None = None) -> Value:
        """Return a new constant."""
        data = np.asarray(array)
        if dtype is not None:
            data = as_dtype(data, dtype.numpy)
        found = dtype_of_numpy(data.dtype)
        assert found is not None, data.dtype
        name = self.fresh(hint or f"{self.origin}.const")
        self.constants[name], self.types[name] = data, TensorType(found, data.shape)
        return Value(name)

    def emit(self, op: str, *inputs: str | None, outputs: int = 1, **attributes: Attribute | None) -> Any:
        """Add an operation; return its result, or all where there are several."""
        given: dict[str, Attribute] = {k: v for k, v in attributes.items() if v is not None}
        name = self.fresh(f"{self.origin}.{op}")
        names = tuple(Value(name if outputs == 1 else f"{name}.{n}") for n in range(outputs))
        node = Node(name, op, tuple(inputs), names, given, self.origin)
        types = self.infer(node, [None if v is None else self.types[v] for v in inputs])
        self.types.update(zip(names, types, strict=True))
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def reshape(self, x: str, shape: Sequence[int]) -> Any:
        """Return a tensor in another shape.

        A dim of 0 is one, -1 stands for the rest.
        """
        return self.emit("reshape", x, shape=tuple(shape), allowzero=True)

    def adjoint(self, y: Value, dy: Value, wrt: Sequence[Value]) -> list[Value]:
        """Return the gradients of operands of an operation.

        `dy` is the gradient of its result `y`. A gradient is zeros where `y` does not depend on the operand.
        """
        node = next(node for node in reversed(self.nodes) if y in node.outputs)
        instance = self.gradients.instance(node, [None if v is None else self.types[v] for v in node.inputs], {})
        names: dict[str, str] = {
            f: v for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None
        }
        formals = {value: formal for formal, value in names.items()}
        results = dict(zip(node.outputs, instance.outputs, strict=False))
        names |= {formal: value for value, formal in results.items()}
        names[f"d{results[y]}"] = dy
        made = self.add_steps(self.gradients.steps(instance, [formals[v] for v in wrt], [results[y]]), names)
        return [made.get(f"d{formals[v]}") or self.zeros_like(v) for v in wrt]

    def add_steps(self, steps: Iterable[Node], names: Mapping[str, str]) -> dict[str, Value]:
        """Add steps over formal names; return their results by formal name.

        `names` maps formal names to values.
        """
        made: dict[str, Value] = {}  # separate from `names`: an operand may have the name of a gradient
        for step in steps:
            inputs = tuple(None if v is None else made.get(v) or names[v] for v in step.inputs)
            outputs = tuple(Value(self.fresh(f"{self.origin}.{name}")) for name in step.outputs)
            name = self.fresh(f"{self.origin}.{step.op}")
            self.add(Node(name, step.op, inputs, outputs, step.attributes, self.origin))
            made |= dict(zip(step.outputs, outputs, strict=True))
        return made

    def add(self, node: Node) -> None:
        """Add an operation of the extended vocabulary of gradients."""
        instance = self.gradients.instance(node, [None if v is None else self.types[v] for v in node.inputs], {})
        self.types.update(zip(node.outputs, instance.output_types, strict=True))
        self.nodes.append(node)

    def zeros_like(self, value: str) -> Value:
        """Return zeros of a value's type."""
        return self.zeros_of(self.types[value])

    def zeros_of(self, type_: TensorType) -> Value:
        """Return zeros of a type."""
        return self.number(0, type_.dtype, type_.shape)

    def number(
        self,
        value: Number,
        dtype: DType,
        shape: Sequence[int] = (),
        convert: Callable[[Number, torch.dtype], torch.Tensor] = convert_checked,
    ) -> Value:
        """Return a number as a value of an element type.

        It is repeated over a shape and converted by a function of `scalars`.

        Raises `GraphError` where PyTorch refuses the conversion.
        """
        number = self.constant(array_of(convert(value, TORCH_TYPES[dtype])))
        return self.emit("expand", number, shape=tuple(shape)) if shape else number  # no constant of equal elements

    def operand(self, value: Any, dtype: DType) -> Value:
        """Return a tensor or number as a value of an element type."""
        if isinstance(value, (int, float)):
            return self.number(value, dtype, convert=convert_wrapping)
        if not isinstance(value, Value):
            return self.constant(value, dtype=dtype)
        return self.cast(value, dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Return a value in another element type."""
        if self.types[value].dtype is dtype:
            return value
        if dtype in (DType.U8, DType.I8, DType.I16) and self.types[value].dtype.is_float:
            value = self.emit("cast", value, to=DType.I64.value)  # PyTorch wraps floats beyond narrow integers
        result: Value = self.emit("cast", value, to=dtype.value)
        return result

    def promote(self, *values: Any) -> list[Value]:
        """Return tensors and numbers in their promoted element type."""
        kind = self.promoted_type(*values)
        return [self.operand(v, kind) for v in values]

    def promoted_type(self, *values: Any) -> DType:
        """Return the promoted element type of tensors and numbers."""
        samples = [
            torch.empty((1,) * len(self.shape(v)), dtype=TORCH_TYPES[self.type(v).dtype]) if isinstance(v, Value) else v
            for v in values
        ]
        first, *others = samples
        result = reduce(torch.promote_types, [torch.result_type(first, other) for other in others or [first]])
        return dtype_of(result)

    def output(self, value: str, name: str) -> str:
        """Return a value that may be an output.

        Inputs, constants and existing outputs get a copy.
        """
        self.origin = name
        if value in self.constants or not any(value in node.outputs for node in self.nodes):
            value = self.emit("identity", value)
        return value

    def copy_as(self, value: str, name: str) -> str:
        """Return a copy of a value under a name, numbered where necessary.

        Without other readers it costs nothing.
        """
        result = Value(self.fresh(name))
        self.nodes.append(Node(self.fresh(f"{name}.copy"), "identity", (value,), (result,), {}, self.origin))
        self.types[result] = self.types[value]
        return result

    def fresh(self, hint: str) -> str:
        """Return an unused name."""
        name = fresh_name(self.used_names, hint)
        self.used_names.add(name)
        return name


#: Takes an import context and a node's arguments, values for nodes; returns a value, or several.
Convert: TypeAlias = Callable[..., Any]


def extract_graph(ctx: ImportContext, name: str, inputs: Sequence[str], outputs: tuple[str, ...]) -> Graph:
    """Return the imported graph without dead nodes and constants.

    An output listed twice is copied. Names in it are plain text, not `Value`: otherwise a tuner's workers, which
    receive parts of a graph, would import PyTorch to unpickle them, which takes seconds.
    """
    unique: list[str] = []
    for value in outputs:
        unique.append(ctx.emit("identity", value) if value in unique else value)
    computed = ctx.computed or ComputedSizes()
    given, results = computed.ends(inputs, map(str, unique))
    whole = Graph(name, given, results, ctx.types, tuple(map(_plain, ctx.nodes)), ctx.constants)
    graph = live_graph(evolve(whole, interface=Interface(producers=tuple(computed.producers))))
    return evolve(graph, types={str(value): type_ for value, type_ in graph.types.items()})


def _plain(node: Node) -> Node:
    """Return a node whose operands and results are plain text."""
    inputs = tuple(None if v is None else str(v) for v in node.inputs)
    return evolve(node, inputs=inputs, outputs=tuple(map(str, node.outputs)))
