"""Per-thread subgraph extraction (DeepCuts section 5.3), on demand.

The paper builds the block's graph, splits the final stores into chunks, one per thread, walks backwards from a thread's
stores and drops unmarked nodes. Here the block's graph is folded, so the walk visits each family once: the stores (and
accumulations) of a thread are the block's with every box variable replaced by the thread's share of it, and the
families they reach follow by substitution. `expand` and `mark` do it the paper's way on the scalar graph; tests compare
both.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from ...ir import (
    MMA_INSTRUCTIONS,
    Accumulate,
    DType,
    Guard,
    Index,
    IndexLike,
    Indirect,
    Item,
    Kernel,
    Load,
    Loop,
    MmaAccumulate,
    Pack,
    Phase,
    Primary,
    RegisterRead,
    RegisterWrite,
    Root,
    SharedMatrix,
    Store,
    Test,
    Value,
    Var,
    as_index,
    coarsen,
    indirects,
    live_guards,
    map_guards,
    map_primaries,
    substitute,
    variables,
    with_indices,
    with_operands,
)
from .threads import merge_quotients, merge_windows, share_reciprocals, spread_copies, vectorise_accesses


def extract(kernel: Kernel) -> Kernel:
    """Return the kernel as one thread executes it.

    Every phase's graph is restricted to the thread's share; its accesses are merged, divisions by one number become
    quotients, and copies are interleaved with products.
    """
    threads = evolve(kernel, items=tuple(_item(i) for i in kernel.items))
    return spread_copies(vectorise_accesses(merge_quotients(merge_windows(share_reciprocals(threads)))))


def _item(item: Item) -> Item:
    if isinstance(item, Loop):
        return evolve(item, body=tuple(_item(i) for i in item.body))
    return extract_phase(item) if isinstance(item, Phase) else item


def extract_phase(phase: Phase) -> Phase:
    """Return the phase of one thread.

    The walk goes backwards from its share of the roots.
    """
    walk = _walk_of(phase, "")
    sides = {operand: _walk_of(phase, operand) for operand in "abc"} if _multiplies(phase) else {}

    def root(root: Root) -> Root:
        if isinstance(root, MmaAccumulate):
            return _multiply(root, sides)
        return (
            _write_registers(root, sides[root.operand])
            if isinstance(root, RegisterWrite) and root.operand
            else walk.root(root)
        )

    return evolve(phase, roots=tuple(root(r) for r in phase.roots), shares=())


def _multiplies(phase: Phase) -> bool:
    return any(isinstance(r, MmaAccumulate) or (isinstance(r, RegisterWrite) and r.operand != "") for r in phase.roots)


def _walk_of(phase: Phase, operand: str) -> _Walk:
    """Return the walk over the nodes of one operand of a matrix instruction, or over the rest. The operand's own shares
    take precedence.
    """
    shares = {s.var: s for chosen in ("", operand) for s in phase.shares if s.operand == chosen}.values()
    return _Walk(
        {s.var: s.value for s in shares},
        {s.var: s.register for s in shares},
        tuple(g for s in shares for g in s.valid),
    )


def _multiply(root: MmaAccumulate, sides: Mapping[str, _Walk]) -> MmaAccumulate:
    """Return a warp's multiplication: three shares in one root, each operand's elements packed into registers."""
    result = sides["c"]
    over = tuple(dict.fromkeys(v for axis in root.over for v in result.local_variables(axis)))
    if MMA_INSTRUCTIONS[root.mma].reads_shared:
        matrices = [_matrix(sides[o].value(v), root.turned and o == "b") for o, v in (("a", root.a), ("b", root.b))]
        return evolve(root, at=result.register_indices(root.at), a=matrices[0], b=matrices[1], over=over)
    a, b = (_pack(sides[o].value(v), root.axes[2 + n]) for n, (o, v) in enumerate((("a", root.a), ("b", root.b))))
    return evolve(root, at=result.register_indices(root.at), a=a, b=b, over=over, axes=root.axes[:2])


def _matrix(value: Value, turned: bool) -> SharedMatrix | RegisterRead:
    """Return the matrix that begins with a value, or the registers that begin with one."""
    if isinstance(value, RegisterRead):
        return evolve(value, dtype=DType.U32) if value.dtype.size < DType.U32.size else value
    assert isinstance(value, Load) and value.space == "shared", "operands are staged as they are"
    return SharedMatrix(value.buffer, value.address, value.dtype, turned)


def _write_registers(root: RegisterWrite, side: _Walk) -> RegisterWrite:
    """Return the register write of an operand: packed registers, or elements that fill a register each."""
    registers, elements = root.axes
    value = side.value(root.value)
    if elements.extent > 1:
        value = _pack(value, elements)
    return evolve(root, at=side.register_indices(root.at), value=value, dtype=value.dtype, axes=(registers,))


def _pack(value: Value, elements: Var) -> Value:
    """Return the registers that hold some elements; register reads need no packing."""
    if isinstance(value, RegisterRead) and elements.extent > 1:
        return evolve(value, dtype=DType.U32)
    return Pack(value, elements)


class _Walk:
    """Backward walk that substitutes places in addresses, register numbers in held values, and adds guards of a share's
    end.
    """

    def __init__(self, values: Mapping[Var, Index], registers: Mapping[Var, Index], valid: tuple[Guard, ...]) -> None:
        self.values: dict[Var, IndexLike] = dict(values)
        self.registers: dict[Var, IndexLike] = dict(registers)
        self.valid = valid
        self.seen: dict[Value, Value] = {}

    def root(self, root: Root) -> Root:
        if isinstance(root, Store):
            address = self.index(root.address)
            return evolve(root, address=address, value=self.value(root.value), guards=self.guards(root.guards))
        if isinstance(root, Accumulate):
            over = tuple(dict.fromkeys(v for axis in root.over for v in self.local_variables(axis)))
            return evolve(root, at=self.register_indices(root.at), value=self.value(root.value), over=over)
        if isinstance(root, RegisterWrite):
            return evolve(root, at=self.register_indices(root.at), value=self.value(root.value))
        return root

    def local_variables(self, axis: Var) -> list[Var]:
        """Return the thread-local variables of a reduced axis, in loop order."""
        if axis not in self.registers:
            return [axis]
        index = self.registers[axis]
        assert isinstance(index, Index)
        terms = sorted(index.terms, key=lambda term: -term[1])
        return [a for a, _ in terms if isinstance(a, Var)]

    def register_indices(self, at: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(substitute(i, self.registers) for i in at)

    def guards(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return tuple(dict.fromkeys((*self.moved_guards(guards), *self.valid)))

    def moved_guards(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return live_guards(map_guards(guards, self.index))

    def index(self, index: Index) -> Index:
        """Return an index at the thread's places, with its registers."""

        def move(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
            if isinstance(primary, Indirect) and primary.held:
                return primary.with_parts(self.register_indices(primary.indices))
            return as_index(self.values.get(primary, primary)) if isinstance(primary, Var) else None

        held = any(i.held for i in indirects(index))
        return map_primaries(index, move) if held else substitute(index, self.values)

    def value(self, node: Value) -> Value:
        if node not in self.seen:
            self.seen[node] = self._rebuild(node)
        return self.seen[node]

    def _rebuild(self, node: Value) -> Value:
        if isinstance(node, Load):
            address = self.index(node.address)
            moved = variables(address)  # neighbours that load one element share its guards
            guards = dict.fromkeys(coarsen(guard, moved) for guard in self.guards(node.guards))
            return evolve(node, address=address, guards=tuple(guards))
        if isinstance(node, RegisterRead):
            return evolve(node, at=self.register_indices(node.at))
        over = with_operands(node, self.value)
        node = with_indices(over, self.index, self.moved_guards)
        if isinstance(node, Test):  # neighbours lie before an end together
            return Test(tuple(dict.fromkeys(coarsen(guard, ()) for guard in node.guards)))
        return node
