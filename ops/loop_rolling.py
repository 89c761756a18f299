"""Loop rolling: repeated subgraphs with a carried state become one operation.

The statements of the graph's nodes are written over rows that move with the iteration; the resulting operation is
declared like any other, so its iterations are a loop wherever the language makes one of them
(`language/recurrence.py`).

    body (h, e) -> (n, e * n)     n = tanh(h + e)
      ->  rows[0, ...] = h.first
          each t < S {
            rows[t + 1, ...] = tanh(rows[t, ...] + e.all[t, ...])
            v[t, ...] = e.all[t, ...] * rows[t + 1, ...]
          }
          h.last = rows[S, ...]     v.all[t, ...] = v[t, ...]
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from ..ir import (
    DType,
    Graph,
    GraphError,
    Index,
    IndexValue,
    Node,
    Program,
    Read,
    Slice,
    Statement,
    TensorType,
    Var,
    as_index,
    needed_nodes,
    unslice,
)
from .gradient import declare
from .language import Instances

#: Largest ratio of a loop's statements to those of one iteration: its ends differ, and statements are hoisted.
MAX_STATEMENT_RATIO = 4
#: Value of the body at an iteration: a part of a tensor of the operation.
Place = Callable[[Index], Slice]


@frozen
class SequenceAxis:
    """Axis of a sequence that iterations go along, forwards or backwards."""

    axis: int = 0
    backwards: bool = False

    def index(self, turn: Index, steps: int) -> Index:
        """Return the place along the axis at an iteration."""
        return as_index(steps - 1) - turn if self.backwards else turn

    def type(self, element: TensorType, steps: int) -> TensorType:
        """Return the type of a sequence of elements."""
        return TensorType(element.dtype, (*element.shape[: self.axis], steps, *element.shape[self.axis :]))


@frozen
class RolledLoop:
    """Body that is computed `steps` times, at least twice.

    Of its inputs, `states` are results of the previous iteration (the first ones are operands), `elements` are taken
    from sequences, and `number` is the iteration's number; all others are invariant. Its outputs are the next states,
    in order, and then the values that are collected into sequences along `collected`.
    """

    body: Graph
    steps: int
    states: tuple[str, ...]
    elements: Mapping[str, SequenceAxis]
    collected: tuple[SequenceAxis, ...]
    number: str | None = None

    @property
    def same(self) -> tuple[str, ...]:
        """Inputs that are the same at each iteration.

        Their operands follow the first states and the sequences.
        """
        own = {*self.states, *self.elements, self.number}
        return tuple(v for v in (*self.body.inputs, *self.body.constants) if v not in own)


def loop_body(
    nodes: Sequence[Node], types: Mapping[str, TensorType], own: Sequence[str], results: Sequence[str]
) -> Graph:
    """Return the loop body that consists of given nodes.

    Its inputs are its own operands, then the values that it reads of the surrounding graph.
    """
    needed, _ = needed_nodes(nodes, results)
    made = {value for node in needed for value in node.outputs}
    read = dict.fromkeys([*(v for node in needed for v in node.operands), *results])
    same = tuple(v for v in read if v not in made and v not in own)
    known = {v: types[v] for v in (*own, *same, *made)}
    return Graph("turn", (*own, *same), tuple(results), known, needed)


def declare_loop(repetition: RolledLoop, instances: Instances) -> tuple[str, str]:
    """Return the name and the declaration of the operation of all iterations.

    Its operands are the first states, the sequences and the invariants; its results the last states and the collected
    sequences.

    Raises `GraphError` where the body has loops of its own, values without elements, or sends values to places, and
    where the language makes no loop of its iterations.
    """
    program = _Composer(repetition, instances).run()
    summary = (
        f"{repetition.steps} turns of {', '.join(dict.fromkeys(n.op for n in repetition.body.nodes)) or 'nothing'}"
    )
    text = declare("repeat", summary, program)
    name = f"repeat_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    text = declare(name, summary, program)
    node = Node(name, name, program.inputs, program.outputs, declaration=text)
    made = instances.of(node, [program.tensors[v] for v in program.inputs]).program
    if len(made.statements) > MAX_STATEMENT_RATIO * len(program.statements):
        raise GraphError(f"a loop whose turns are {len(made.statements)} statements, written out one after another")
    return name, text


@define
class _Composer:
    repetition: RolledLoop
    instances: Instances
    turn: Var = field(init=False)
    tensors: dict[str, TensorType] = field(factory=dict)
    places: dict[str, Place] = field(factory=dict)
    constants: dict[str, tuple[float, ...]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.turn = Var("turn of all", self.repetition.steps)

    def run(self) -> Program:
        """Return the program of all iterations."""
        repetition = self.repetition
        inputs = [*self._states(), *self._sequences(), *self._invariants()]
        front = [*self._first_states(), *self._numbers()]
        self._place_next_states()
        turns = [s for node in repetition.body.nodes for s in self._node(node)]
        turns += self._copy_states()
        outputs, epilogue = self._results()
        if any(not type_.size for type_ in self.tensors.values()):
            raise GraphError("a loop over values without elements")
        return Program(self.tensors, tuple(inputs), outputs, (*front, *turns, *epilogue), self.constants)

    # ---- where values are

    def _type(self, value: str) -> TensorType:
        return self.repetition.body.types[value]

    def _rows(self, whole: str, value: str, count: int) -> None:
        """Enter a tensor of a row for each iteration."""
        self.tensors[whole] = TensorType(self._type(value).dtype, (count, *self._type(value).shape))

    def _row(self, whole: str, ahead: int = 0) -> Place:
        """Return the place of a value that is a row of a tensor."""
        shape = self.tensors[whole].shape[1:]
        return lambda turn: Slice(whole, (turn + ahead, *(Index() for _ in shape)), (None, *shape))

    def _whole_tensor(self, tensor: str, type_: TensorType) -> Place:
        self.tensors[tensor] = type_
        return lambda turn: Slice(tensor, tuple(Index() for _ in type_.shape), type_.shape)

    def _states(self) -> Iterator[str]:
        for state in self.repetition.states:
            self._rows(f"{state}.rows", state, self.repetition.steps + 1)
            self.places[state] = self._row(f"{state}.rows")
            self.tensors[f"{state}.first"] = self._type(state)
            yield f"{state}.first"

    def _sequences(self) -> Iterator[str]:
        for element, along in self.repetition.elements.items():
            self.tensors[f"{element}.all"] = along.type(self._type(element), self.repetition.steps)
            self.places[element] = self._step_of_sequence(f"{element}.all", along)
            yield f"{element}.all"

    def _step_of_sequence(self, sequence: str, along: SequenceAxis) -> Place:
        shape, axis, steps = self.tensors[sequence].shape, along.axis, self.repetition.steps
        extents = tuple(None if d == axis else n for d, n in enumerate(shape))
        return lambda turn: Slice(
            sequence, tuple(along.index(turn, steps) if d == axis else Index() for d in range(len(shape))), extents
        )

    def _invariants(self) -> Iterator[str]:
        for value in self.repetition.same:
            self.places[value] = self._whole_tensor(value, self._type(value))
            yield value

    def _place_next_states(self) -> None:
        """Write the next value of a state as its next row, where nothing else is there."""
        made = {v for node in self.repetition.body.nodes for v in node.outputs}
        for state, value in zip(self.repetition.states, self.repetition.body.outputs, strict=False):
            if value in made and value not in self.places:
                self.places[value] = self._row(f"{state}.rows", ahead=1)

    # ---- statements

    def _first_states(self) -> Iterator[Statement]:
        for state in self.repetition.states:
            axes = _axes(self._type(state))
            yield _copy(f"{state}.rows", (Index(), *map(as_index, axes)), axes, Read(f"{state}.first", _indices(axes)))

    def _numbers(self) -> Iterator[Statement]:
        number = self.repetition.number
        if number is not None:
            self._rows(f"{number}.rows", number, self.repetition.steps)
            self.places[number] = self._row(f"{number}.rows")
            at = Var("n", self.repetition.steps)
            yield Statement(f"{number}.rows", (at,), (as_index(at),), IndexValue(as_index(at), DType.I64))

    def _node(self, node: Node) -> Iterator[Statement]:
        """Yield the statements of a node of the body at each iteration."""
        instance = self.instances.of_node(node, self.repetition.body)
        program = instance.program
        if any(s.step is not None or s.into for s in program.statements):
            raise GraphError(f"node '{node.name}' has turns, or places, of its own")
        names = {f: v for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None}
        names |= dict(zip(instance.outputs, node.outputs, strict=False))
        for tensor, type_ in program.tensors.items():
            names.setdefault(tensor, f"{node.name}.{tensor}")
            value = names[tensor]
            if tensor in program.constants:
                self.constants[value] = program.constants[tensor]
                self.places[value] = self._whole_tensor(value, type_)
            elif value not in self.places:
                self.tensors[f"{value}.rows"] = TensorType(type_.dtype, (self.repetition.steps, *type_.shape))
                self.places[value] = self._row(f"{value}.rows")
        parts = {tensor: self.places[names[tensor]](as_index(self.turn)) for tensor in program.tensors}
        for statement in program.statements:
            yield self._over_iterations(unslice(statement, parts))

    def _over_iterations(self, statement: Statement) -> Statement:
        return evolve(statement, axes=(self.turn, *statement.axes), step=self.turn, span=None)

    def _copy_states(self) -> Iterator[Statement]:
        """Yield the copies of next states that are no row of their own."""
        turn = as_index(self.turn)
        for state, value in zip(self.repetition.states, self.repetition.body.outputs, strict=False):
            target = Slice(f"{state}.rows", *_row_at(turn + 1, self._type(state)))
            if self.places[value](turn) != target:
                yield self._over_iterations(_copy_slice(target, self.places[value](turn), self._type(state)))

    def _results(self) -> tuple[tuple[str, ...], list[Statement]]:
        """Return the results, and the statements that make them of the rows."""
        repetition, statements, outputs = self.repetition, [], []
        for state in repetition.states:
            axes = _axes(self._type(state))
            self.tensors[f"{state}.last"] = self._type(state)
            rows = Read(f"{state}.rows", (Index(repetition.steps), *map(as_index, axes)))
            statements.append(_copy(f"{state}.last", _indices(axes), axes, rows))
            outputs.append(f"{state}.last")
        again = Var("turn of results", repetition.steps)
        values = repetition.body.outputs[len(repetition.states) :]
        for number, (value, along) in enumerate(zip(values, repetition.collected, strict=True)):
            name = f"{value}.collected {number}"
            self.tensors[name] = along.type(self._type(value), repetition.steps)
            turn = as_index(again)
            made = _copy_slice(self._step_of_sequence(name, along)(turn), self.places[value](turn), self._type(value))
            statements.append(evolve(made, axes=(again, *made.axes), step=again))
            outputs.append(name)
        return tuple(outputs), statements


def _axes(type_: TensorType) -> tuple[Var, ...]:
    return tuple(Var(f"i{n}", extent) for n, extent in enumerate(type_.shape))


def _indices(axes: Sequence[Var]) -> tuple[Index, ...]:
    return tuple(map(as_index, axes))


def _row_at(row: Index, type_: TensorType) -> tuple[tuple[Index, ...], tuple[int | None, ...]]:
    return (row, *(Index() for _ in type_.shape)), (None, *type_.shape)


def _copy(target: str, write: tuple[Index, ...], axes: Sequence[Var], body: Read) -> Statement:
    return Statement(target, tuple(a for a in axes if a.extent > 1), write, body)


def _copy_slice(target: Slice, source: Slice, type_: TensorType) -> Statement:
    """Return the statement that copies one part of a tensor to another."""
    axes = _axes(type_)
    return _copy(target.whole, target.outside(_indices(axes)), axes, Read(source.whole, source.outside(_indices(axes))))
