"""Text form of graph IR: one line for each value or node.

    graph "mlp" {
      input %x: f32[1, 4]
      const %w: f32[4, 2] = opaque
      const %b: f32[2] = [0.5, -1.0]
      %h: f32[1, 2] = matmul(%x, %w) @mm
      %y: f32[1, 2] = add(%h, %b) @"add 1" from "Add_1"
      output %y
    }

A graph with state, fixed results or updated inputs has lines for them after its outputs:

      state cache = %keys to %keys.next = opaque
      result output_1 at 1 = 3
      update %values to %values.next

Printing is stable (attributes are sorted) and `print_graph(parse_graph(text, constants)) == text` for every printed
text. Constants of up to `MAX_INLINE_ELEMENTS` elements stand in the text, constants with one value throughout as
`splat`; the arrays of the others are `opaque` and are given to `parse_graph` beside the text. A node that brings the
declaration of its operation along ends in `declared` and that text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from attrs import define, field

from ..errors import ParseError
from ..graph import Array, Attribute, FixedResult, FixedValue, Graph, Interface, Node, StateTensor
from ..source import Source, Span
from ..types import DType, TensorType

#: Largest number of elements that a constant shows in the text.
INLINE = 16
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
Scalar: TypeAlias = int | float | bool | str


def print_name(name: str) -> str:
    """Return a name in text form: an identifier or a JSON string."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def print_scalar(value: Scalar) -> str:
    """Return a literal.

    Floats always carry a point, an exponent, `inf` or `nan`.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def print_attribute(value: Attribute) -> str:
    """Return an attribute's literal, a list in brackets for a tuple."""
    if isinstance(value, tuple):
        return "[" + ", ".join(print_scalar(v) for v in value) + "]"
    return print_scalar(value)


def _print_array(array: Array | None) -> str:
    if array is None:
        return "opaque"
    flat = array.reshape(-1) if array.size <= INLINE else array.reshape(-1)[:1]
    values: list[Scalar] = flat.tolist()
    if array.size <= INLINE:
        return "[" + ", ".join(print_scalar(v) for v in values) + "]"
    # Compare bits: NaN compares unequal to itself, and -0.0 equal to 0.0.
    bits = f"u{array.itemsize}"
    uniform = not any(array.strides) or bool(np.all(array.view(bits) == flat.view(bits)))
    return f"splat {print_scalar(values[0])}" if uniform else "opaque"


def print_node(node: Node, types: Mapping[str, TensorType]) -> str:
    """Return one node on one line."""
    results = ", ".join(f"%{print_name(v)}: {types[v]}" if v in types else f"%{print_name(v)}" for v in node.outputs)
    operands = ", ".join("_" if v is None else f"%{print_name(v)}" for v in node.inputs)
    attributes = ", ".join(f"{print_name(k)} = {print_attribute(v)}" for k, v in sorted(node.attributes.items()))
    text = f"{results} = {print_name(node.op)}({operands})"
    text += f" {{{attributes}}}" if attributes else ""
    text += f" @{print_name(node.name)}"
    text += f" from {json.dumps(node.origin)}" if node.origin else ""
    return text + (f" declared {json.dumps(node.declaration)}" if node.declaration else "")


def print_graph(graph: Graph) -> str:
    """Return the text form of a graph, ending in a newline."""
    lines = [f"graph {json.dumps(graph.name)} {{"]
    lines += [f"  input %{print_name(v)}: {graph.types[v]}" for v in graph.inputs]
    lines += [f"  const %{print_name(v)}: {graph.types[v]} = {_print_array(a)}" for v, a in graph.constants.items()]
    lines += ["  " + print_node(node, graph.types) for node in graph.nodes]
    lines += ["  output " + ", ".join(f"%{print_name(v)}" for v in graph.outputs)] if graph.outputs else []
    lines += _interface_lines(graph.interface)
    return "\n".join([*lines, "}", ""])


def _interface_lines(interface: Interface) -> list[str]:
    state = [
        f"  state {print_name(name)} = %{print_name(t.input)} to %{print_name(t.output)} = {_print_array(t.initial)}"
        for name, t in interface.state.items()
    ]
    fixed = [
        f"  result {print_name(name)} at {r.place} = {'none' if r.value is None else print_scalar(r.value)}"
        for name, r in interface.fixed.items()
    ]
    updates = [f"  update %{print_name(old)} to %{print_name(new)}" for old, new in interface.updates.items()]
    return state + fixed + updates


def parse_graph(text: str, constants: Mapping[str, Array] | None = None, name: str = "<graph>") -> Graph:
    """Read a graph from its text form.

    `constants` gives the arrays of the opaque constants.
    """
    return _Parser(Source(name, text), constants or {}).graph()


_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>-inf\b|-?(?:\d+\.\d*|\d+)(?:[eE][-+]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<mark>[%@{}()\[\]:=,])""",
    re.VERBOSE,
)


@define
class _Token:
    kind: str
    text: str
    start: int


@define
class _Parser:
    source: Source
    given: Mapping[str, Array]
    tokens: list[_Token] = field(factory=list)
    at: int = 0
    types: dict[str, TensorType] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        offset = 0
        while offset < len(self.source.text):
            match = _TOKEN.match(self.source.text, offset)
            if match is None:
                raise ParseError("unexpected character", Span(self.source, offset, offset + 1))
            if match.lastgroup != "space":
                self.tokens.append(_Token(str(match.lastgroup), match.group(), offset))
            offset = match.end()
        self.tokens.append(_Token("end", "", len(self.source.text)))

    def fail(self, expected: str) -> ParseError:
        token = self.tokens[self.at]
        found = repr(token.text) if token.text else "the end of the text"
        return ParseError(
            f"expected {expected}, found {found}", Span(self.source, token.start, token.start + max(1, len(token.text)))
        )

    def accept(self, text: str) -> bool:
        token = self.tokens[self.at]
        matched = token.text == text and token.kind in ("mark", "word")
        self.at += matched
        return matched

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(repr(text))

    def take(self, kind: str, expected: str) -> str:
        token = self.tokens[self.at]
        if token.kind != kind:
            raise self.fail(expected)
        self.at += 1
        return token.text

    def string(self) -> str:
        text = self.take("string", "a string in double quotes")
        try:
            return str(json.loads(text))
        except json.JSONDecodeError:
            self.at -= 1
            raise self.fail("a string with JSON escapes") from None

    def name(self) -> str:
        return self.string() if self.tokens[self.at].kind == "string" else self.take("word", "a name")

    def value(self) -> str:
        self.expect("%")
        return self.name()

    def type(self) -> TensorType:
        if self.tokens[self.at].text not in (known := [d.value for d in DType]):
            raise self.fail(f"an element type ({', '.join(known)})")
        dtype = DType(self.take("word", "an element type"))
        self.expect("[")
        shape: list[int] = []
        while not self.accept("]"):
            if shape:
                self.expect(",")
            extent = self.scalar()
            if not isinstance(extent, int) or isinstance(extent, bool):
                self.at -= 1
                raise self.fail("an extent")
            shape.append(extent)
        return TensorType(dtype, tuple(shape))

    def typed_value(self) -> str:
        value = self.value()
        self.expect(":")
        self.types[value] = self.type()
        return value

    def scalar(self) -> Scalar:
        token = self.tokens[self.at]
        if token.kind == "string":
            return self.string()
        if token.kind == "word" and token.text in ("true", "false", "inf", "nan"):
            self.at += 1
            return token.text == "true" if token.text in ("true", "false") else float(token.text)
        text = self.take("number", "a literal")
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)

    def attribute(self) -> Attribute:
        if self.accept("["):
            values: list[Scalar] = []
            while not self.accept("]"):
                if values:
                    self.expect(",")
                values.append(self.scalar())
            return tuple(values)  # type: ignore[return-value]  # the printer wrote one element type
        return self.scalar()

    def array(self, value: str) -> Array:
        type_ = self.types[value]
        start = self.at
        if self.accept("opaque"):
            if value not in self.given:
                self.at = start
                raise ParseError(
                    f"the array of constant '{value}' is not in the text", self.span(start), "pass it in `constants`"
                )
            return self.given[value]
        values = self.scalar() if self.accept("splat") else self.attribute()
        if isinstance(values, tuple) and len(values) != math.prod(type_.shape):
            raise ParseError(
                f"expected {math.prod(type_.shape)} elements for {type_}, found {len(values)}", self.span(start)
            )
        try:
            array = np.array(values, type_.dtype.numpy)
        except (ValueError, OverflowError, TypeError):
            raise ParseError(f"expected elements of type {type_.dtype}", self.span(start)) from None
        return array.reshape(type_.shape) if isinstance(values, tuple) else np.broadcast_to(array, type_.shape)

    def span(self, index: int) -> Span:
        token, last = self.tokens[index], self.tokens[max(index, self.at - 1)]
        return Span(self.source, token.start, last.start + len(last.text))

    def node(self) -> Node:
        outputs = [self.typed_value()]
        while self.accept(","):
            outputs.append(self.typed_value())
        self.expect("=")
        start = self.at
        op = self.name()
        span = self.span(start)
        self.expect("(")
        inputs: list[str | None] = []
        while not self.accept(")"):
            if inputs:
                self.expect(",")
            inputs.append(None if self.accept("_") else self.value())
        attributes: dict[str, Attribute] = {}
        if self.accept("{"):
            while not self.accept("}"):
                if attributes:
                    self.expect(",")
                key = self.name()
                self.expect("=")
                attributes[key] = self.attribute()
        self.expect("@")
        name = self.name()
        origin = self.string() if self.accept("from") else ""
        own = self.string() if self.accept("declared") else ""
        return Node(name, op, tuple(inputs), tuple(outputs), attributes, origin, span=span, declaration=own)

    def state(self) -> tuple[str, StateTensor]:
        name = self.name()
        self.expect("=")
        start = self.at
        given = self.value()
        if given not in self.types:
            raise ParseError(f"nothing defines %{given}", self.span(start))
        self.expect("to")
        found = self.value()
        self.expect("=")
        return name, StateTensor(given, found, self.array(given))

    def result(self) -> tuple[str, FixedResult]:
        name = self.name()
        self.expect("at")
        place = int(self.take("number", "a place"))
        self.expect("=")
        value: FixedValue = None if self.accept("none") else self.scalar()
        return name, FixedResult(place, value)

    def graph(self) -> Graph:
        self.expect("graph")
        name = self.string()
        self.expect("{")
        inputs: list[str] = []
        outputs: list[str] = []
        nodes: list[Node] = []
        constants: dict[str, Array] = {}
        state: dict[str, StateTensor] = {}
        fixed: dict[str, FixedResult] = {}
        updates: dict[str, str] = {}
        while not self.accept("}"):
            if self.accept("input"):
                inputs.append(self.typed_value())
            elif self.accept("const"):
                value = self.typed_value()
                self.expect("=")
                constants[value] = self.array(value)
            elif self.accept("output"):
                outputs.append(self.value())
                while self.accept(","):
                    outputs.append(self.value())
            elif self.accept("state"):
                held, tensor = self.state()
                state[held] = tensor
            elif self.accept("result"):
                known, result = self.result()
                fixed[known] = result
            elif self.accept("update"):
                old = self.value()
                self.expect("to")
                updates[old] = self.value()
            else:
                nodes.append(self.node())
        self.take("end", "the end of the text")
        interface = Interface(state, fixed, updates)
        return Graph(name, tuple(inputs), tuple(outputs), self.types, tuple(nodes), constants, interface)
