"""Composes adjacent data movements and conversions into one operation, or none.

    %a: f32[2, 3, 4] = reshape(%x) {shape = [2, 3, 4]}      ->     %y: f32[4, 6] = reshape(%x) {shape = [4, 6]}
    %y: f32[4, 6] = reshape(%a) {shape = [4, 6]}

A movement is a program of one statement whose body is one unguarded read, perhaps converted. Two of them compose by
substitution of their index maps. The composition is expressed by an operation that exists: one of the two, with its own
attributes or with attributes composed like permutations. A proposal is taken only if its index map is equal to the
composition, so a wrong one costs time and nothing else.

A movement that reads one whole part of a join is that part, and depends on no other operand of the join.

    %j: f32[4, 3] = concat(%a, %b) {axis = 0}
    %y: f32[2, 3] = slice(%j) {starts = [2], ends = [4], axes = [0]}     ->     %b

A join of movements of one tensor that puts each of its elements back is that tensor.

    %r = slice(%x) {starts = [0], ends = [1], axes = [1]};  %i = slice(%x) {starts = [1], ends = [2], axes = [1]}
    %y: f32[4, 2] = concat(%r, %i) {axis = 1}                            ->     %x
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from attrs import evolve, frozen

from ....ir import (
    Attribute,
    Cast,
    CutsError,
    DType,
    Expr,
    Graph,
    Index,
    IndexLike,
    Node,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    rebuild,
    substitute,
    substitute_expr,
)
from ....ops.language import Instances
from ..rewrite import Rewriting


@frozen
class IndexMap:
    """Index map of a movement.

    The element at coordinates `d0, d1, ...` of its result is `body`, which holds one read.
    """

    body: Expr
    result: TensorType


@frozen
class ComposeMovement:
    """Compose a movement with its predecessor; drop one without other readers."""

    name: ClassVar[str] = "compose-movement"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph with the shortest chains of movements."""
        rewriting = Rewriting(graph)
        for node in rewriting.next():
            found: Node | str | None = node
            while isinstance(found, Node):
                node = found
                found = self._shorten(node, graph, rewriting.producers)
            if found is None or not rewriting.replace(node.outputs[0], found):
                rewriting.add(node)
        return rewriting.result

    def _shorten(self, last: Node, graph: Graph, producers: Mapping[str, Node]) -> Node | str | None:
        """Return a movement composed with its predecessor, or the equal value; None where there is neither."""
        whole = self._rejoined_tensor(last, graph, producers)
        if whole is not None:
            return whole
        second = self._move(last, graph)
        first_node = None if second is None else producers.get(last.operands[0])
        if second is None or first_node is None:
            return None
        first = self._move(first_node, graph)
        if first is None:
            return self._restored_operand(first_node, second, graph)
        source = first_node.operands[0]
        composed = compose(first, second, graph.types[source])
        if _is_copy(composed, graph.types[source]):
            return source
        for op, attributes in _proposals(first_node, last):
            node = evolve(last, op=op, inputs=(source,), attributes=attributes)
            if self._means(node, graph.types[source], composed):
                return node
        return None

    def _move(self, node: Node, graph: Graph) -> IndexMap | None:
        """Return the index map of a node with one operand, or None where it is no movement."""
        if len(node.inputs) != 1 or len(node.operands) != 1 or len(node.outputs) != 1:
            return None
        return read_move(self.instances.of_node(node, graph).program)

    def _rejoined_tensor(self, join: Node, graph: Graph, producers: Mapping[str, Node]) -> str | None:
        """Return the tensor whose parts a join puts back in their places, or None."""
        if len(join.operands) < 2 or len(join.operands) != len(join.inputs) or len(join.outputs) != 1:
            return None
        first, *others = (self._origins(operand, graph, producers) for operand in join.operands)
        sources = [s for s in first if all(s in o for o in others) and graph.types[s] == graph.types[join.outputs[0]]]
        program = self.instances.of_node(join, graph).program if sources else None
        for source in sources:
            assert program is not None
            moves = {t: o[source] for t, o in zip(program.inputs, (first, *others), strict=True)}
            if all(_keeps_place(statement, moves) for statement in program.statements):
                return source
        return None

    def _origins(self, value: str, graph: Graph, producers: Mapping[str, Node]) -> dict[str, IndexMap]:
        """Map the tensors from which movements lead to a value to the movement from each."""
        found: dict[str, IndexMap] = {}
        while (node := producers.get(value)) is not None and (move := self._move(node, graph)) is not None:
            value = node.operands[0]
            found[value] = compose(move, next(reversed(found.values())), graph.types[value]) if found else move
        return found

    def _restored_operand(self, join: Node, move: IndexMap, graph: Graph) -> str | None:
        """Return the operand of a node that a movement of its result restores, or None."""
        program = self.instances.of_node(join, graph).program
        if len(program.outputs) != 1 or not 1 < len(join.inputs) == len(program.inputs):
            return None
        place = joined_operand(program, move)
        part = None if place is None else join.inputs[place]
        return part if part is not None and graph.types[part] == move.result else None

    def _means(self, node: Node, source: TensorType, wanted: IndexMap) -> bool:
        """Return whether a proposed node computes the composition."""
        try:
            move = read_move(self.instances.of(node, [source]).program)
        except CutsError:
            return False
        return move == wanted


def _coordinates(type_: TensorType) -> tuple[Index, ...]:
    return tuple(as_index(Var(f"d{n}", extent)) for n, extent in enumerate(type_.shape))


def read_move(program: Program) -> IndexMap | None:
    """Return a program's index map, or None where it is no movement."""
    if len(program.statements) != 1 or len(program.outputs) != 1:
        return None
    statement = program.statements[0]
    read = statement.body
    while isinstance(read, Cast):
        read = read.arg
    if not statement.is_pointwise or not isinstance(read, Read) or read.guards or read.tensor not in program.inputs:
        return None
    return _index_map(statement, program.tensors[program.outputs[0]])


@lru_cache(maxsize=1 << 10)
def _index_map(statement: Statement, result: TensorType) -> IndexMap | None:
    """Return the index map of a statement that writes a whole result; equal nodes share it."""
    values: dict[Var, IndexLike] = {}
    for written, coordinate in zip(statement.write, _coordinates(result), strict=True):
        digits = _digits(written, coordinate)
        if digits is None:
            return None
        values |= digits
    return IndexMap(_without_name(substitute_expr(statement.body, values)), result)


def _digits(written: Index, coordinate: Index) -> dict[Var, IndexLike] | None:
    """Return the axes of a written index, given its value: `v + 4*u`, with v below 4, makes `v = i % 4` and `u
    = i // 4`.
    """
    step = 1
    values: dict[Var, IndexLike] = {}
    for primary, factor in sorted(written.terms, key=lambda term: term[1]):
        if not isinstance(primary, Var) or factor != step or written.const:
            return None
        values[primary] = coordinate // step % primary.extent
        step *= primary.extent
    return values


@lru_cache(maxsize=1 << 10)
def compose(first: IndexMap, second: IndexMap, source: TensorType) -> IndexMap:
    """Return the movement from the first's operand to the second's result."""

    def leaf(read: Expr) -> Expr:
        assert isinstance(read, Read)
        values: dict[Var, IndexLike] = {
            Var(f"d{n}", extent): read.indices[n] for n, extent in enumerate(first.result.shape)
        }
        return substitute_expr(first.body, values)

    return IndexMap(_simplify_casts(rebuild(second.body, leaf), source.dtype), second.result)


def joined_operand(program: Program, move: IndexMap) -> int | None:
    """Return the input that a program writes, unchanged, where a movement reads.

    It is a position among the program's inputs.
    """
    if not isinstance(move.body, Read) or move.body.guards:
        return None
    single: dict[Var, IndexLike] = {Var(f"d{n}", 1): 0 for n in range(len(move.result.shape))}
    wanted = tuple(substitute(index, single) for index in move.body.indices)
    for statement in program.statements:
        read = statement.body
        if not isinstance(read, Read) or read.guards or not statement.is_pointwise or read.tensor not in program.inputs:
            continue
        values = _axes_of(read.indices)
        written = tuple(substitute(index, values or {}) for index in statement.write)
        if values is not None and values.keys() >= set(statement.axes) and written == wanted:
            return program.inputs.index(read.tensor)
    return None


def _keeps_place(statement: Statement, moves: Mapping[str, IndexMap]) -> bool:
    """Return whether a statement copies each element, through movements of its operands, to its own place."""
    read = statement.body
    if not statement.is_pointwise or not isinstance(read, Read) or read.guards or read.tensor not in moves:
        return False
    move = moves[read.tensor]
    if not isinstance(move.body, Read) or move.body.guards:
        return False
    values = {Var(f"d{n}", extent): read.indices[n] for n, extent in enumerate(move.result.shape)}
    return tuple(substitute(index, values) for index in move.body.indices) == statement.write


def _axes_of(indices: Sequence[Index]) -> dict[Var, IndexLike] | None:
    """Return the coordinate of each axis of a tensor that is read in its layout; else None."""
    values: dict[Var, IndexLike] = {}
    for number, index in enumerate(indices):
        (primary, factor), *rest = index.terms or ((None, 1),)
        if rest or index.const or factor != 1 or not (primary is None or isinstance(primary, Var)):
            return None
        if isinstance(primary, Var):
            values[primary] = as_index(Var(f"d{number}", primary.extent))
    return values


def _simplify_casts(expr: Expr, dtype: DType) -> Expr:
    """Drop conversions that change nothing: to the type at hand, or through a type that holds every value."""
    if not isinstance(expr, Cast):
        return expr
    inner = _simplify_casts(expr.arg, dtype)
    while isinstance(inner, Cast) and _holds(inner.dtype, inner.arg.dtype if isinstance(inner.arg, Cast) else dtype):
        inner = inner.arg
    found = inner.dtype if isinstance(inner, Cast) else dtype
    return inner if found is expr.dtype else Cast(expr.dtype, inner)


def _holds(wide: DType, narrow: DType) -> bool:
    """Return whether every value of one element type is a value of another, so that a round trip changes nothing."""
    if wide is narrow:
        return True
    if wide is DType.BOOL or narrow is DType.BOOL:
        return narrow is DType.BOOL
    if narrow.is_float:
        return wide.is_float and wide.size > narrow.size
    negative = narrow.element.kind == "signed"
    return wide.element.digits >= narrow.element.digits and (wide.element.kind != "unsigned" or not negative)


def _is_copy(move: IndexMap, source: TensorType) -> bool:
    return isinstance(move.body, Read) and move.body.indices == _coordinates(move.result) and source == move.result


def _without_name(expr: Expr) -> Expr:
    return rebuild(expr, lambda node: evolve(node, tensor="") if isinstance(node, Read) else node)


def _proposals(first: Node, second: Node) -> Iterator[tuple[str, dict[str, Attribute]]]:
    """Yield operations that might be the composition of two."""
    yield second.op, dict(second.attributes)
    yield first.op, dict(first.attributes)
    if first.op != second.op:
        return
    composed = dict(second.attributes)
    for name, outer in second.attributes.items():
        inner = first.attributes.get(name)
        if isinstance(inner, tuple) and isinstance(outer, tuple) and _is_permutation(inner) and _is_permutation(outer):
            composed[name] = tuple(int(inner[int(n)]) for n in outer) if len(inner) == len(outer) else outer
    yield first.op, composed


def _is_permutation(value: tuple[int, ...] | tuple[float, ...] | tuple[str, ...]) -> bool:
    return set(value) == set(range(len(value)))
