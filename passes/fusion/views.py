"""Storage of tensors, so that data movement costs no kernel.

A *copy* is a unit whose statements only read one element each. A copy of one statement becomes a view where the address
of its source is affine in the coordinates of its result (reshape, transpose, slice, split, expand). A copy of several
statements is a concatenation: its operands are placed inside the result's buffer, so that their producers write
straight into it; largest results go first, and a concatenation of operands that already lie next to each other is a
view again (DenseNet's growing prefixes). A graph output owns a dense buffer, so views of it are derived backwards: `y =
reshape(x)` places x in y's buffer.

    y = concat(a[2, 3], b[2, 5])     a: y + 0, strides (8, 1);  b: y + 3, strides (8, 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from ...ir import (
    Index,
    Statement,
    Storage,
    TensorType,
    Var,
    as_index,
    is_affine,
    linearise,
    solve,
    substitute,
    variables,
)
from ..statements import Programs, Unit
from .cut_units import copy_source

#: Bytes of the smallest write to memory, and fewest bytes of a tensor for which that matters.
SECTOR_BYTES, MIN_LARGE_BYTES = 32, 1 << 20


@frozen
class Views:
    """Programs with free units marked, and the storage of other tensors.

    These own no dense buffer of their own name. `sources` maps the result of a free copy to the tensor it views.
    """

    programs: Programs
    storages: Mapping[str, Storage]
    sources: Mapping[str, str] = field(factory=dict)

    def storage(self, tensor: str) -> Storage:
        """Return the storage of a tensor."""
        return self.storages.get(tensor) or Storage(tensor, 0, self.programs.types[tensor].strides)


def loop_iterations(views: Views) -> dict[str | None, int]:
    """Return the iterations of each loop; 1 for groups outside of loops."""
    repeats = {u.name: u.repeat for u in views.programs.units if u.repeat is not None}
    return {None: 1, **{name: repeat.step.extent for name, repeat in repeats.items()}}


def find_views(programs: Programs, fixed: Mapping[str, Storage] | None = None) -> Views:
    """Place concatenated tensors and outputs, then make views of affine copies.

    Tensors that are `fixed` keep their place.
    """
    finder = _Finder(programs, fixed or {}, dict(_rows(programs)))
    for output in programs.graph.outputs:
        finder.claim_output(output)
    joins = [u for u in programs.units if _is_join(u)]
    for unit in sorted(joins, key=lambda u: -programs.types[u.writes[0]].size):
        finder.join(unit)
    for unit in programs.units:
        finder.view(unit)
    return _with_loops(finder.result())


def _with_loops(views: Views) -> Views:
    """Place the slices that loops touch, and the tensors within each iteration that need no buffer."""
    programs = views.programs
    storages = {**views.storages, **{t: _slice_storage(views, t) for t in _moving(programs)}}
    sources = dict(views.sources)
    units: list[Unit] = []
    for unit in programs.units:
        if unit.repeat is not None:
            found = find_views(programs.iteration(unit.repeat), storages)
            storages.update(found.storages)
            sources.update(found.sources)
            unit = evolve(unit, repeat=evolve(unit.repeat, units=found.programs.units))
        units.append(unit)
    return Views(evolve(programs, units=tuple(units)), storages, sources)


def _moving(programs: Programs) -> Iterator[str]:
    """Yield the slices that are parts of tensors around their loop: those that it reads, and those it leaves there."""
    for unit in programs.units:
        if unit.repeat is not None:
            made = {t for u in unit.repeat.units for t in u.writes} - set(unit.repeat.kept)
            touched = dict.fromkeys(t for u in unit.repeat.units for t in (*u.reads, *u.writes))
            yield from (t for t in touched if t in programs.slices and t not in made)


def _rows(programs: Programs) -> Iterator[tuple[str, Storage]]:
    """Yield the rows of rotating tensors that a statement around a loop touches, with their place."""
    touched = dict.fromkeys(t for u in programs.units for t in (*u.reads, *u.writes))
    for tensor in touched:
        part = programs.slices.get(tensor)
        if part is not None and part.whole in programs.rotating and part.starts[0].is_const:
            rows, step = programs.rotating[part.whole], programs.types[part.whole].strides[0]
            yield tensor, Storage(part.whole, part.starts[0].const % rows * step, programs.types[tensor].strides)


def _slice_storage(views: Views, tensor: str) -> Storage:
    """Return the storage of a slice."""
    programs = views.programs
    part, type_ = programs.slices[tensor], programs.types[tensor]
    (step,) = {v for start in part.starts for v in variables(start)}
    if part.whole in programs.rotating:
        rows, row = programs.rotating[part.whole], programs.types[part.whole].strides[0]
        pace = part.starts[0].coefficient(step)
        phase, first = divmod(part.starts[0].const % rows, pace)
        return Storage(part.whole, first * row, type_.strides, pace * row, step.extent, rows // pace, phase)
    whole = views.storage(part.whole)
    start = linearise(part.starts, whole.strides)
    kept = tuple(stride for stride, n in zip(whole.strides, part.extents, strict=True) if n is not None)
    return Storage(whole.buffer, whole.offset + start.const, kept, start.coefficient(step), step.extent)


def memory_span(storage: Storage, type_: TensorType) -> int:
    """Return how many elements of memory a tensor spans."""
    return (
        1 + sum(step * (extent - 1) for step, extent in zip(storage.strides, type_.shape, strict=True))
        if type_.size
        else 0
    )


def _is_join(unit: Unit) -> bool:
    return (
        len(unit.statements) > 1
        and len(unit.writes) == 1
        and all(copy_source(s) and s.target == unit.writes[0] for s in unit.statements)
    )


def _moved_storage(
    where: Sequence[Index], to: Sequence[Index], axes: Sequence[Var], shape: Sequence[int], storage: Storage
) -> Storage | None:
    """Return the storage of a tensor whose element `where(axes)` is element `to(axes)` of a tensor at `storage`.

    None where addresses are not affine, or where they would run backwards: a storage begins at its first element.
    """
    dims = tuple(Var(f"d{n}", extent) for n, extent in enumerate(shape))
    solution = solve([(w, as_index(d)) for w, d in zip(where, dims, strict=True)], axes)
    if solution is None or solution.guards or solution.free:
        return None
    address = linearise([substitute(i, solution.values) for i in to], storage.strides)
    if not is_affine(address):
        return None
    strides = tuple(address.coefficient(d) for d in dims)
    if min(strides, default=0) < 0:
        return None
    return evolve(storage, offset=storage.offset + address.const, strides=strides)


class _Finder:
    """State of the search: tensors placed so far and units that are free."""

    def __init__(self, programs: Programs, fixed: Mapping[str, Storage], rows: Mapping[str, Storage]) -> None:
        self.programs = programs
        self.types = programs.types
        self.storages = {**fixed, **rows}
        self.rows = frozenset(rows)
        self.sources: dict[str, str] = {}
        self.free: set[str] = set()
        self.units: dict[str, tuple[Unit, ...]] = {u.name: (u,) for u in programs.units}
        self.writers = programs.producers()
        self.producer = {t: found[0] for t, found in self.writers.items() if len(found) == 1}
        self.outputs = set(programs.graph.outputs)
        self.readers = Counter(t for u in programs.units for t in u.reads)
        self.consumers = programs.consumers()

    def result(self) -> Views:
        units = tuple(
            evolve(u, free=u.name in self.free) for unit in self.programs.units for u in self.units[unit.name]
        )
        return Views(evolve(self.programs, units=units), dict(self.storages), dict(self.sources))

    def storage(self, tensor: str) -> Storage:
        return self.storages.get(tensor) or Storage(tensor, 0, self.types[tensor].strides)

    # ---- graph outputs

    def claim_output(self, tensor: str) -> None:
        """Place the source of a graph output inside the output's own buffer."""
        unit = self.producer.get(tensor)
        if (
            unit is not None
            and len(unit.statements) == 1
            and copy_source(unit.statements[0])
            and self._place_source(unit, self.storage(tensor))
        ):
            self._set_free(unit)

    def _place(self, tensor: str, storage: Storage) -> bool:
        """Make a computed tensor, or one of several pieces, live at `storage`.

        False where it is an input, an output, or has another place.
        """
        writers = self.writers.get(tensor, ())
        placed = tensor in self.outputs or tensor in self.storages or any(u.name in self.free for u in writers)
        if not writers or placed:
            return False
        (unit, *others) = writers
        copied = not others and len(unit.statements) == 1 and copy_source(unit.statements[0])
        if copied and self._place_source(unit, storage):
            self._set_free(unit)
        self.storages[tensor] = storage
        return True

    def _place_source(self, unit: Unit, storage: Storage) -> bool:
        (statement,) = unit.statements
        read = copy_source(statement)
        assert read is not None
        if self.types[read.tensor].size != self.types[statement.target].size:
            return False
        found = _moved_storage(read.indices, statement.write, statement.axes, self.types[read.tensor].shape, storage)
        if found is None or (self._is_scattered(read.tensor, found) and self._joins(read.tensor)):
            return False
        return self._place(read.tensor, found)

    def _set_free(self, unit: Unit) -> None:
        self.free.add(unit.name)
        if len(unit.statements) == 1:
            self.sources[unit.writes[0]] = unit.reads[0]

    # ---- concatenations

    def join(self, unit: Unit) -> None:
        """Place the operands of a concatenation.

        Those that cannot be placed keep a copy each, unless none can.
        """
        target = unit.writes[0]
        if target in self.rows:
            return  # a loop overwrites it, and its operands may be needed for longer
        if self._is_selected(unit):
            return
        together = None if target in self.outputs or target in self.storages else self._adjacent(unit)
        if together is not None:
            self.storages[target] = together
            self._set_free(unit)
            return
        placed = [n for n, statement in enumerate(unit.statements) if self._place_part(statement, self.storage(target))]
        if not placed:
            return
        pieces = [_piece(unit, [unit.statements[n] for n in placed], unit.name)]
        rest = [n for n in range(len(unit.statements)) if n not in placed]
        pieces += [_piece(unit, [unit.statements[n]], f"{unit.name}/{n}") for n in rest]
        self.units[unit.name] = tuple(pieces)
        self.free.add(unit.name)
        self.producer.pop(target)
        self.writers.pop(target)

    def _is_selected(self, unit: Unit) -> bool:
        """Return whether the readers of a concatenation select between its operands.

        Its operands and its readers are elementwise, so that a reader computes the operand of its own element: the
        halves of a rotary embedding need neither a buffer nor kernels that write them.
        """
        target = unit.writes[0]
        readers = [] if target in self.outputs or target in self.storages else self.consumers.get(target, [])
        return (
            len(unit.statements) == 2
            and bool(readers)
            and all(self._joins(t) for t in unit.reads)
            and all(s.is_pointwise and s.step is None for r in readers for s in r.statements)
            and all(_reads_own_element(s, target) for r in readers for s in r.statements)
        )

    def _place_part(self, statement: Statement, storage: Storage) -> bool:
        read = copy_source(statement)
        assert read is not None
        size = 1
        for axis in statement.axes:
            size *= axis.extent
        if size != self.types[read.tensor].size:
            return False
        found = _moved_storage(read.indices, statement.write, statement.axes, self.types[read.tensor].shape, storage)
        if found is None or (self._is_scattered(read.tensor, found) and self._fuses(read.tensor)):
            return False
        return self._place(read.tensor, found)

    def _is_scattered(self, tensor: str, storage: Storage) -> bool:
        """Return whether a large tensor would be written in separate runs that are shorter than a write to memory."""
        type_, run = self.types[tensor], self.types[tensor].dtype.size
        for extent, stride in reversed(list(zip(type_.shape, storage.strides, strict=True))):
            if extent > 1 and stride * type_.dtype.size != run:
                break
            run *= extent
        return run < SECTOR_BYTES and type_.nbytes >= MIN_LARGE_BYTES

    def _fuses(self, tensor: str) -> bool:
        """Return whether a tensor is computed elementwise, so that a kernel that writes whole rows can compute it."""
        unit = self.producer.get(tensor)
        return unit is not None and all(s.is_pointwise and s.step is None for s in unit.statements)

    def _joins(self, tensor: str) -> bool:
        """Return whether a tensor is computed elementwise for one reader, which may as well compute it."""
        return self._fuses(tensor) and self.readers[tensor] == 1

    def _adjacent(self, unit: Unit) -> Storage | None:
        """Return the place of a concatenation whose operands already lie next to each other in one buffer, in order."""
        reads = [copy_source(s) for s in unit.statements]
        found = [self.storages.get(r.tensor) for r in reads if r is not None]
        if any(f is None or f.by for f in found) or len({f.buffer for f in found if f}) != 1:
            return None
        parts = [
            (s, linearise(r.indices, f.strides) + f.offset)
            for s, r, f in zip(unit.statements, reads, found, strict=True)
            if r is not None and f is not None
        ]
        strides = [_stride(d, parts) for d in range(len(self.types[unit.writes[0]].shape))]
        offsets = {address - linearise(s.write, strides) for s, address in parts}
        offset = offsets.pop()
        if offsets or not offset.is_const or min(offset.const, *strides) < 0 or found[0] is None:
            return None
        return Storage(found[0].buffer, offset.const, tuple(strides))

    # ---- plain views

    def view(self, unit: Unit) -> None:
        """Make a copy of one statement a view of its source."""
        target = unit.writes[0] if unit.writes else ""
        if unit.name in self.free or len(unit.statements) != 1 or target in self.outputs or target in self.storages:
            return
        if unit.hoisted or target not in self.producer:
            return  # the copy is wanted, or a scatter changes it
        (statement,) = unit.statements
        read = copy_source(statement)
        if read is None:
            return
        found = _moved_storage(
            statement.write, read.indices, statement.axes, self.types[target].shape, self.storage(read.tensor)
        )
        if found is not None:
            self.storages[target] = found
            self._set_free(unit)


def _reads_own_element(statement: Statement, tensor: str) -> bool:
    """Return whether a statement that computes reads a tensor only at the element that it writes."""
    return copy_source(statement) is None and all(
        r.indices == statement.write and not r.guards for r in statement.reads if r.tensor == tensor
    )


def _piece(unit: Unit, statements: Sequence[Statement], name: str) -> Unit:
    reads = tuple(dict.fromkeys(t for s in statements for t in s.tensors_read))
    return evolve(unit, name=name, statements=tuple(statements), reads=reads)


def _stride(dim: int, parts: Sequence[tuple[Statement, Index]]) -> int:
    """Return the step of one dim of a concatenation, from an axis along it or from the starts of its parts."""
    for statement, address in parts:
        for axis in statement.axes:
            if statement.write[dim].coefficient(axis) == 1:
                return address.coefficient(axis)
    for first, start in parts:
        for second, address in parts:
            steps = [b.const - a.const for a, b in zip(first.write, second.write, strict=True)]
            if steps[dim] and not any(s for n, s in enumerate(steps) if n != dim):
                return (address.const - start.const) // steps[dim]
    return 0
