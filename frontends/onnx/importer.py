"""Traversal of an ONNX graph: folds, converts, and collects all errors.

Values keep their ONNX names. A node that cannot be imported makes its results unknown, and nodes that read unknown
results are skipped in silence, so that each fault is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from attrs import define, evolve, field, frozen

from ...ir import (
    Array,
    Attribute,
    CutsError,
    ErrorList,
    GraphError,
    Infer,
    Node,
    TensorType,
    dtype_of_numpy,
    fresh_name,
    quote,
)
from ...ops.symbolic import ComputedSizes
from .call import Convert, MoreResults, NodeCall
from .fold import INEXACT, NoKernel, can_fold, fold, fold_by_declaration
from .protos import (
    Opaque,
    attribute_types,
    declared_name,
    function_body,
    has_function,
    inline_body,
    max_operands,
    opset_of,
    tensor_array,
)

#: Least bytes of a constant whose conversion to wider numbers is left to the compiler.
MIN_PACKED_BYTES = 1 << 12
#: Imports a node in its place: the importer, the node, its attributes and its name in errors.
Structure: TypeAlias = Callable[["Importer", onnx.NodeProto, Mapping[str, Any], str], None]


@frozen
class Structures:
    """Importers of nodes that contain subgraphs or take lists of values.

    Branches, loops and sequences are not in the table of conversions.
    """

    by_name: Mapping[str, Structure]
    of_lists: Structure

    def reads(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is structured, by its name."""
        return node.domain in ("", "ai.onnx") and node.op_type in self.by_name


@define
class Importer:
    """The state of one import; a `Builder` for the conversions."""

    table: Mapping[str, Convert]
    structures: Structures
    infer: Infer
    opset: int
    folder: Path | None
    results: frozenset[str]
    types: dict[str, TensorType] = field(factory=dict)
    constants: dict[str, Array] = field(factory=dict)
    aliases: dict[str, str] = field(factory=dict)
    nodes: list[Node] = field(factory=list)
    errors: list[CutsError] = field(factory=list)
    unsupported: dict[str, list[str]] = field(factory=dict)
    reserved: set[str] = field(factory=set)
    unknown: set[str] = field(factory=set)
    sources: dict[str, frozenset[str]] = field(factory=dict)
    wanted: set[str] = field(factory=set)
    given: set[str] = field(factory=set)
    inputs: tuple[str, ...] = ()
    declared: Collection[str] = ()
    sequences: dict[str, tuple[str, ...]] = field(factory=dict)
    outermost: str = ""
    refused: dict[str, None] = field(factory=dict)
    computed: ComputedSizes | None = None

    # ---- interface for conversions

    def type_of(self, value: str) -> TensorType:
        """Return the type of a value."""
        return self.types[value]

    def constant(self, value: str) -> Array | None:
        """Return the array of a value, None where it is computed."""
        return self.constants.get(value)

    def want(self, value: str) -> None:
        """Record the inputs that a value depends on as wanted constants."""
        self.wanted |= self.sources.get(value, frozenset())

    def add_constant(self, array: Array, hint: str) -> str:
        """Return the name of a new constant."""
        return self._define_constant(self.fresh(hint), array)

    def add_node(
        self,
        op: str,
        inputs: Sequence[str | None],
        attributes: Mapping[str, Attribute],
        origin: str,
        outputs: Sequence[str | None],
        declaration: str = "",
    ) -> tuple[str, ...]:
        """Add an operation and return its outputs.

        An output of None gets a fresh name. `declaration` is that of an operation outside the vocabulary.

        Raises `GraphError` where the node has not as many results as the operation.
        """
        node_name = self.fresh(f"{origin}/{op}")
        names = tuple(self.fresh(f"{origin}.{op}") if name is None else name for name in outputs)
        trial = Node(node_name, op, tuple(inputs), names, dict(attributes), origin, declaration=declaration)
        types = self.infer(trial, [None if v is None else self.types[v] for v in inputs])
        if len(types) < len(names) and all(name is None for name in outputs[len(types) :]):
            names = names[: len(types)]  # absent optional results that our operation does not have
        if len(types) != len(names):
            raise GraphError(f"op '{op}' has {len(types)} results, the node has {len(names)}")
        self.nodes.append(evolve(trial, outputs=names))
        self.types.update(zip(names, types, strict=True))
        source_inputs = frozenset().union(*(self.sources.get(v, frozenset()) for v in inputs if v is not None))
        self.sources.update(dict.fromkeys(names, source_inputs))
        return names

    def alias(self, name: str, value: str) -> None:
        """Let an ONNX name stand for an existing value or sequence.

        A result of the graph becomes a copy of its value.
        """
        if value in self.sequences:
            self.sequences[name] = self.sequences[value]
        elif name in self.results:
            self.add_node("identity", [value], {}, name, [name])
        else:
            self.aliases[name] = value

    # ---- traversal

    def import_all(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Import the nodes of the main graph.

        Afterwards `refused` has the nodes outside the vocabulary, each by its first result.
        """
        for node in nodes:
            self.outermost = next((name for name in node.output if name), "")
            self.run([node])

    def run(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Import nodes in order, each by its operator set, collecting errors."""
        usual = self.opset
        for node in nodes:
            self.opset = opset_of(node, usual)
            where = f"node {quote(node.name or next(iter(node.output), ''))} ({node.op_type})"
            known = not any(name in self.unknown for name in node.input)
            if self._foldable(node) or self._is_known(node) or self.structures.reads(node):
                if known:
                    self._import(node, where)
                else:
                    self.unknown.update(node.output)
            elif (body := self._body(node) if known else None) is not None:
                self.run(inline_body(node, body, self.fresh))
            elif not known and has_function(node, self.opset):
                self.unknown.update(node.output)
            else:
                self._refuse(node)
        self.opset = usual

    def _is_known(self, node: onnx.NodeProto) -> bool:
        return bool(declared_name(node.op_type, self.declared)) or (
            node.domain in ("", "ai.onnx") and node.op_type in self.table
        )

    def _body(self, node: onnx.NodeProto) -> onnx.FunctionProto | None:
        names = self._names(node)
        return function_body(node, self.opset, [self.types.get(name) for name in names])

    def _names(self, node: onnx.NodeProto) -> list[str]:
        """Return the values that a node reads, aliases resolved."""
        return [self.aliases.get(name, name) for name in node.input]

    def _source_inputs(self, node: onnx.NodeProto) -> frozenset[str]:
        """Return the inputs that a node depends on."""
        return frozenset().union(*(self.sources.get(name, frozenset()) for name in self._names(node)))

    def _refuse(self, node: onnx.NodeProto) -> None:
        name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        self.unsupported.setdefault(name, []).append(node.name or next(iter(node.output), ""))
        self.refused[self.outermost] = None
        self.unknown.update(node.output)

    def _import(self, node: onnx.NodeProto, where: str) -> None:
        try:
            self._import_checked(node, where)
        except CutsError as error:
            self.unknown.update(node.output)
            for part in error.errors if isinstance(error, ErrorList) else (error,):
                message = part.message if part.message.startswith(where) else f"{where}: {part.message}"
                opaque = isinstance(part, Opaque)
                self.errors.append(
                    (Opaque if opaque else GraphError)(message, hint=part.hint or self._given_hint(node))
                )
                if opaque:
                    self.refused[self.outermost] = None
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            # Lists of attributes and operands that are too short or too long for each other, which the standard
            # forbids.
            self.unknown.update(node.output)
            self.errors.append(GraphError(f"{where}: its attributes and operands do not fit each other ({error})"))
        except (AssertionError, LookupError, AttributeError, ArithmeticError) as error:
            self.unknown.update(node.output)
            self.errors.append(Opaque(f"{where}: {type(error).__name__}: {error}", hint="report this with the model"))
            self.refused[self.outermost] = None

    def _import_checked(self, node: onnx.NodeProto, where: str) -> None:
        attributes = self._attributes(node, where)
        if any(node.input[max_operands(node) :]) and not declared_name(node.op_type, self.declared):
            raise GraphError(f"{where}: expected at most {max_operands(node)} operands, found {len(node.input)}")
        if self._foldable(node):
            self._fold_by_any(node, attributes, where)
        elif (structure := self._structure(node)) is not None:
            structure(self, node, attributes, where)
        else:
            self._convert(node, attributes, where)

    def _structure(self, node: onnx.NodeProto) -> Structure | None:
        """Return the importer of a node with subgraphs or lists of values, else None."""
        if node.op_type in self.structures.by_name:
            return self.structures.by_name[node.op_type]
        of_list = any(self.aliases.get(name, name) in self.sequences for name in node.input)
        return self.structures.of_lists if of_list else None

    def _foldable(self, node: onnx.NodeProto) -> bool:
        names = [self.aliases.get(name, name) for name in node.input if name]
        return can_fold(node) and not self.structures.reads(node) and all(name in self.constants for name in names)

    def _fold_by_any(self, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
        """Evaluate a node of constants by ONNX's reference, else by our declarations.

        A node that widens packed constants stays: the compiler decides where its result is computed.
        """
        ours, failure = self._is_known(node), None
        if ours and self._reads_packed(node) and self._widen(node, attributes, where):
            return
        if not (ours and node.op_type in INEXACT):
            try:
                self._fold(node, attributes, where)
                return
            except NoKernel as error:
                failure = error
                if not ours:
                    raise
        first = len(self.nodes)
        self._convert(node, attributes, where)
        added = self.nodes[first:]
        del self.nodes[first:]
        for each in added:
            values = (
                None if declared_name(each.op, self.declared) else fold_by_declaration(each, self.types, self.constants)
            )
            self.constants.update(values or {})
            if values is None:
                self.nodes.append(each)
        if failure and any(name and name not in self.types and name not in self.aliases for name in node.output):
            raise failure

    def _reads_packed(self, node: onnx.NodeProto) -> bool:
        """Return whether a node reads a large constant of numbers of at most two bytes."""
        arrays = [self.constants[name] for name in self._names(node) if name]
        return any(a.dtype.itemsize <= 2 and a.dtype != np.bool_ and a.nbytes >= MIN_PACKED_BYTES for a in arrays)

    def _widen(self, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> bool:
        """Convert a node of constants; return whether its results are larger, else leave the importer as it was."""
        nodes, types, aliases = list(self.nodes), dict(self.types), dict(self.aliases)
        read = sum(self.constants[name].nbytes for name in self._names(node) if name)
        try:
            self._convert(node, attributes, where)
        except CutsError:
            found = 0
        else:
            found = sum(self.types[name].nbytes for name in node.output if name in self.types)
        if found > read:
            return True
        self.nodes[:], self.types, self.aliases = nodes, types, aliases
        return False

    def _given_hint(self, node: onnx.NodeProto) -> str:
        """Return the hint for a failing node that depends on the values of given inputs."""
        source_inputs = self._source_inputs(node) & self.given
        listed = ", ".join(map(quote, sorted(source_inputs)))
        return (
            f"it depends on the values of {listed}; where they are random, give them by --input"
            if source_inputs
            else ""
        )

    def _fold(self, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
        arrays = [self.constants[name] if name else None for name in self._names(node)]
        source_inputs = self._source_inputs(node)
        values = [attributes["value"]] if node.op_type == "Constant" and "value" in attributes else None
        for name, value in zip(node.output, values or fold(node, arrays, attributes, self.opset, where), strict=False):
            if not name:
                continue
            if not isinstance(value, (np.ndarray, np.generic)) or dtype_of_numpy(value.dtype) is None:
                raise GraphError(f"{where}: its constant result is no tensor of a supported element type")
            self._define_constant(name, np.asarray(value))
            self.sources[name] = source_inputs

    def _convert(self, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
        inputs = tuple(self.aliases.get(name, name) or None for name in node.input)
        lost = [name for name in inputs if name is not None and name not in self.types]
        if lost:
            raise GraphError(f"{where}: reads value {quote(lost[0])} that nothing defines")
        origin = node.name or next(iter(node.output), "")
        call = NodeCall(
            self, node.op_type, where, origin, inputs, tuple(name or None for name in node.output), attributes
        )
        if own := declared_name(node.op_type, self.declared):
            call.result(own, *inputs, **attributes)
            return
        try:
            self.table[node.op_type](call)
        except MoreResults:
            body = self._body(node)
            if body is None:
                raise
            self.run(inline_body(node, body, self.fresh))
            return
        foreign = sorted(set(attributes) - call.used)
        if foreign:
            raise Opaque(f"{where}: attribute {', '.join(map(quote, foreign))} is not supported")

    def _attributes(self, node: onnx.NodeProto, where: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        declared = attribute_types(node, self.opset)
        for attribute in node.attribute:
            expected = declared.get(attribute.name, attribute.type)
            if attribute.type != expected or attribute.ref_attr_name:
                kinds = onnx.AttributeProto.AttributeType
                found = kinds.Name(attribute.type) if attribute.type in kinds.values() else str(attribute.type)
                raise GraphError(
                    f"{where}: attribute {quote(attribute.name)}: expected {kinds.Name(expected)}, found {found}"
                )
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, onnx.TensorProto):
                value = tensor_array(value, self.folder, f"{where}: attribute {quote(attribute.name)}")
            elif isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif attribute.type == onnx.AttributeProto.FLOAT:
                value = _as_written(value)
            elif attribute.type == onnx.AttributeProto.FLOATS:
                value = [_as_written(each) for each in value]
            values[attribute.name] = value
        return values

    def attempt(self, step: Callable[[], list[str]]) -> list[str] | None:
        """Return the values that a step imports, None where it fails.

        A failed step leaves no nodes and no errors.
        """
        nodes, errors = len(self.nodes), len(self.errors)
        saved = {op: list(names) for op, names in self.unsupported.items()}, dict(self.refused), set(self.unknown)
        found = step()
        if len(self.errors) == errors and self.unsupported == saved[0] and not self.unknown.intersection(found):
            return found
        del self.nodes[nodes:], self.errors[errors:]
        self.unsupported, self.refused, self.unknown = saved
        return None

    # ---- names

    def define_input(self, name: str, type_: TensorType) -> None:
        """Define a graph input."""
        self.types[name] = type_
        self.sources[name] = frozenset({name})

    def define_given(self, arrays: Mapping[str, Array]) -> None:
        """Define inputs by their values."""
        self.define_constants(arrays)
        self.given |= {name for name, array in arrays.items() if array.size}
        self.sources.update({name: frozenset({name}) for name in self.given})

    def define_constants(self, arrays: Mapping[str, Array]) -> None:
        """Define initialisers."""
        for name, array in arrays.items():
            self._define_constant(name, array)

    def _define_constant(self, name: str, array: Array) -> str:
        dtype = dtype_of_numpy(array.dtype)
        assert dtype is not None, array.dtype
        self.constants[name] = array
        self.types[name] = TensorType(dtype, array.shape)
        return name

    def fresh(self, hint: str) -> str:
        """Return a new value name: the hint, numbered where necessary."""
        self.reserved.add(name := fresh_name(self.reserved, hint))
        return name


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Return every value name of a graph and its subgraphs."""
    names = {v.name for v in graph.input} | {t.name for t in graph.initializer} | {v.name for v in graph.output}
    for node in graph.node:
        names.update(node.output)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= all_names(attribute.g)
    return names


def _as_written(value: float) -> float:
    """Return the shortest decimal number of an f32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
