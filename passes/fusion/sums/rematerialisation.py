"""Rematerialises light values with readers on both sides of long reductions.

The differences from a mean are summed as squares and are read again by each consumer of that sum. Where rows are longer
than a block holds, or are divided among blocks, no kernel has both readers at once, so that the differences would be
written once and read in each of them, though they are as large as the data that they are made of:

    d[i, r] = x[i, r] - m[i];    s[i] = sum_r d[i, r] ** 2;    y[i, r] = d[i, r] * rsqrt(s[i])
      ->   d[i, r] = x[i, r] - m[i];    s[i] = sum_r d[i, r] ** 2
           e[i, r] = x[i, r] - m[i];    y[i, r] = e[i, r] * rsqrt(s[i])

Each of the two values is then inlined into its reader. The same holds for each long sum that reads such a value: sums
that have nothing else in common are kernels of their own. Elementwise readers of the same sums still share a value, for
one kernel may contain them all. No kernel sums both along rows and across many of them, so that sums of columns have
values of their own, too, where loading the operands of these takes less than storing and loading the values. All
readers share it where one of them, such as a product of matrices, reads an element several times: the value is written
anyway.

A value that is much larger than its operands, such as a mask of positions, takes more to load than to compute. Readers
that read its elements several times, as heads do, have copies of their own, and so has each reader of a conversion to a
wider type and of rows that are looked up in a smaller table:

    m[i, j] = j <= p[i];    w[h, i, j] = m[i, j] ? ... of each layer   ->   a mask within each layer's kernel
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, evolve, field

from ....ir import Cast, Read, Statement, rename_statement
from ...statements import DefUse, Programs, Unit, apply, external_reads, issue_slots, rewritten, tensors_looked_up
from ..cut_units import copy_source
from ..legality import Policy
from .blocked_variance import MAX_BLOCK_ELEMENTS, ROW_NEIGHBOURS

#: Fewest bytes of a value whose write matters.
MIN_BYTES = 1 << 20
#: Least ratio of a value's bytes to those of its operands that makes it cheaper to compute than to load.
MIN_EXPANSION = 8
#: Most bytes that a rematerialised value reads, relative to its own: one of two operands is usually read there
#: for something else, too.
MAX_READ_RATIO = 2


def rematerialise(programs: Programs) -> Programs:
    """Return programs in which long reductions separate no readers of light values."""
    found = _Rematerialiser(programs)
    found.copy_expansions()
    if any(map(found.is_long, found.index.units)):
        for unit in reversed(tuple(found.index.units)):  # copies of a reader need copies of it
            found.rematerialise(unit)
    return programs if len(found.index.units) == len(programs.units) else rewritten(programs, found.index)


@define
class _Rematerialiser:
    """Rematerialises values. `readers` and `writers` are the current places of the units that read and write each
    tensor, `light` caches the answer for current units. A copy changes few of them: it takes no new index.
    """

    programs: Programs
    index: DefUse = field(init=False)
    readers: dict[str, list[int]] = field(init=False, factory=dict)
    writers: dict[str, list[int]] = field(init=False, factory=dict)
    light: dict[str, bool] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.index = DefUse.of_programs(self.programs)
        for place, unit in enumerate(self.index.units):
            for found, tensors in ((self.readers, unit.reads), (self.writers, unit.writes)):
                for tensor in dict.fromkeys(tensors):
                    found.setdefault(tensor, []).append(place)

    def copy_expansions(self) -> None:
        """Compute values that take longer to load once for each reader."""
        for unit in reversed(tuple(self.index.units)):
            if not self._is_elementwise(unit) or not self._is_elementwise(source := self._shown_unit(unit)):
                continue
            readers = [self.index.units[n] for n in self.readers.get(unit.writes[0], ())]
            several = [u.name for u in readers if self._needs_copy(source, u, unit.writes[0])]
            for reader in several[len(several) == len(readers) :]:
                self._copy_for(unit, [reader])

    def _needs_copy(self, unit: Unit, reader: Unit, shown: str) -> bool:
        """Return whether a reader of a unit's value, `shown` by a view, computes it for less than a load of it."""
        if any(shown in tensors_looked_up(s) for s in reader.statements):
            return False
        size, (read, looked_up) = self.index.types[unit.writes[0]].nbytes, self._operands(unit)
        if looked_up or all(isinstance(s.body, Cast) and isinstance(s.body.arg, Read) for s in unit.statements):
            return read < size
        return read * MIN_EXPANSION <= size and not self._reads_once(reader, shown)

    def _operands(self, unit: Unit) -> tuple[int, bool]:
        """Return the bytes that a value and those it alone reads are made of, and whether rows are looked up."""
        read, looked_up = 0, any(map(tensors_looked_up, unit.statements))
        for tensor in unit.reads:
            places, size = self.writers.get(tensor, []), self.index.types[tensor].nbytes
            own = len(places) == len(self.readers[tensor]) == 1 and self._is_elementwise(self.index.units[places[0]])
            more = self._operands(self.index.units[places[0]]) if own else (size, False)
            read, looked_up = read + more[0], looked_up or more[1]
        return read, looked_up

    def _shown_unit(self, unit: Unit) -> Unit:
        """Return the unit whose value a view shows; other units show their own."""
        while len(unit.statements) == 1 and copy_source(unit.statements[0]) and len(unit.reads) == 1:
            places = self.writers.get(unit.reads[0], [])
            if len(places) != 1:
                break
            unit = self.index.units[places[0]]
        return unit

    def rematerialise(self, unit: Unit) -> bool:
        """Rematerialise a light value if long reductions separate its readers."""
        if not self._is_light(unit):
            return False
        (value,) = unit.writes
        readers = self.readers.get(value, [])
        if len(readers) < 2 or not all(self._reads_once(self.index.units[n], value) for n in readers):
            return False
        stages = self._stages(unit)
        wanted: dict[tuple[int, str], list[str]] = {}
        crossing = set[bool]()
        for place in readers:
            last = self._computing_unit(self.index.units[place])
            place_of = stages[place], last.name if self.is_long(last) else ""
            wanted.setdefault(place_of, []).append(self.index.units[place].name)
            crossing.add(bool(place_of[1]) and self._crosses_rows(last))
        if len({stage for stage, _ in wanted}) < 2 and not (len(crossing) > 1 and self._is_narrow(unit)):
            return False
        for names in [wanted[place_of] for place_of in sorted(wanted)][1:]:
            self._copy_for(unit, names)
        return True

    def is_long(self, unit: Unit) -> bool:
        """Return whether a unit sums rows that no block holds.

        Where a sum reads each element once, rows across memory are loaded with their neighbours.
        """
        return any(self._needed_elements(s) > MAX_BLOCK_ELEMENTS for s in unit.statements if s.combine is not None)

    def _crosses_rows(self, unit: Unit) -> bool:
        """Return whether a unit's sums read each element once, across memory: no kernel of whole rows has them."""
        return all(map(self._is_across, (s for s in unit.statements if s.combine is not None)))

    def _is_narrow(self, unit: Unit) -> bool:
        """Return whether to load a unit's operands again takes fewer bytes than to store and load its value."""
        read = sum(self.index.types[t].nbytes for t in unit.reads)
        return read < 2 * self.index.types[unit.writes[0]].nbytes

    def _needed_elements(self, total: Statement) -> int:
        """Return the elements that a block holds for a row of a sum."""
        return prod(v.extent for v in total.reduce) * (ROW_NEIGHBOURS if self._is_across(total) else 1)

    def _is_across(self, total: Statement) -> bool:
        """Return whether a sum reads each element once, with its rows across memory."""
        indexed = [r for r in total.reads if r.indices]
        along = any(v in total.reduce for r in indexed for v, _ in r.indices[-1].terms)
        largest = max((self.index.types[r.tensor].size for r in indexed), default=0)
        return not along and prod(v.extent for v in (*total.axes, *total.reduce)) <= largest

    def _computing_unit(self, unit: Unit) -> Unit:
        """Return the unit whose kernel computes a unit: its only reader, as long as it is light."""
        readers = self.readers.get(unit.writes[0], []) if self._is_light(unit) else []
        if len(readers) != 1 or not self._reads_once(reader := self.index.units[readers[0]], unit.writes[0]):
            return unit
        return self._computing_unit(reader)

    def _is_light(self, unit: Unit) -> bool:
        """Return whether a unit computes one value elementwise from little more data than the value."""
        if unit.name not in self.light:
            self.light[unit.name] = self._computes_light_value(unit)
        return self.light[unit.name]

    def _computes_light_value(self, unit: Unit) -> bool:
        if not self._is_elementwise(unit):
            return False
        size, read = self.index.types[unit.writes[0]].nbytes, sum(self.index.types[t].nbytes for t in unit.reads)
        if size < MIN_BYTES or (read >= size and {*unit.reads} <= {*self.programs.graph.inputs}):
            return False
        return read <= (MAX_READ_RATIO + 0.5) * size

    def _is_elementwise(self, unit: Unit) -> bool:
        """Return whether a unit computes one value elementwise, by few instructions."""
        if unit.repeat is not None or len(unit.writes) != 1 or unit.writes[0] in self.index.pinned:
            return False
        plain = all(s.is_pointwise and s.step is None for s in unit.statements)
        once = len({s.target for s in unit.statements}) == len(unit.statements)
        alone = once and len(self.writers[unit.writes[0]]) == 1
        return plain and alone and issue_slots(*(s.body for s in unit.statements)) <= Policy().recompute

    def _reads_once(self, unit: Unit, value: str) -> bool:
        """Return whether a unit reads each element of a value at most once, and is no view of it that others need."""
        if unit.repeat is not None or (all(map(copy_source, unit.statements)) and not self._is_light(unit)):
            return False
        size = self.index.types[value].size
        own = [s for s in unit.statements if value in s.tensors_read]
        return all(s.into is None and prod(v.extent for v in (*s.axes, *s.reduce)) <= size for s in own)

    def _stages(self, unit: Unit) -> Mapping[int, int]:
        """Return, by place, how many long reductions lie between a unit and each unit that depends on it. Light units
        are computed where they are read first.
        """
        (begin,) = self.writers[unit.writes[0]]
        made, found = {unit.writes[0]: 0}, dict[int, int]()
        pending = self._later_readers(begin, unit)
        while pending:
            place = heapq.heappop(pending)
            if place in found:
                continue
            other = self.index.units[place]
            found[place] = max(made[t] for t in other.reads if t in made)
            made.update(dict.fromkeys(other.writes, found[place] + self.is_long(other)))
            for later in self._later_readers(place, other):
                heapq.heappush(pending, later)
        for place in reversed(found):
            if self._is_light(other := self.index.units[place]):
                read = [found[n] for n in self.readers.get(other.writes[0], ()) if n in found]
                found[place] = min(read, default=found[place])
        return found

    def _later_readers(self, place: int, unit: Unit) -> list[int]:
        """Return the later places at which a unit's results are read, in order."""
        return sorted({n for t in unit.writes for n in self.readers.get(t, ()) if n > place})

    def _copy_for(self, unit: Unit, readers: Sequence[str]) -> None:
        """Compute a value again for some of its readers, ahead of the first of them."""
        (value,), add = unit.writes, self.index.add_tensor
        names = {s.target: add(f"{s.target}.again", self.index.types[s.target]) for s in unit.statements}
        first, *_ = places = [n for n in self.readers[value] if self.index.units[n].name in readers]
        for place in places:
            reader = self.index.units[place]
            apply(self.index, {s: [rename_statement(s, names)] for s in reader.statements})
            self._renew(place, reader.writes)
        for each in (e for e in (*self.readers.values(), *self.writers.values()) if e and e[-1] >= first):
            each[:] = [n + (n >= first) for n in each]
        self.index.insert(first, unit, "again", [rename_statement(s, names) for s in unit.statements])
        self._renew(first, (names[value],))
        self.readers[value] = [n for n in self.readers[value] if n - 1 not in places]
        self.readers[names[value]] = [n + 1 for n in places]
        self.writers[names[value]] = [first]
        for tensor in self.index.units[first].reads:
            insort(self.readers.setdefault(tensor, []), first)

    def _renew(self, place: int, writes: Sequence[str]) -> None:
        unit = self.index.units[place]
        self.index.replace(unit, [evolve(unit, reads=external_reads(unit, self.index), writes=tuple(writes))])
