"""Inversion of a read's access map: the iterations that read an element.

A statement reads `x[f(v)]` for every value of its variables `v`. The adjoint needs the inverse: for an element `j` of
`x`, all `v` with `f(v) = j`. The answer names some variables in terms of `j` and of those that stay free (a sum runs
over them), with the conditions under which such `v` exist:

    x[n, c, 2*o + r]      n = j0, c = j1, r = 2*q + j2 % 2, o = j2 // 2 - q     q free; no tap of a stride in vain
    x[i // 4, i % 4]      i = 4*j0 + j1                                         reshape
    b[k]                  k = j0                                                others free: a broadcast becomes a sum
    x[clamp(i - 1, ...)]  i = j0 + e, where clamp(j0 + e - 1, ...) = j0         e free over the overhang
    x[ids[i]]             all i where ids[i] = j0                               a gather becomes a sum over positions

Where the residue of `j` decides which values a variable takes, `phases` says so: the caller may invert again for each
residue alone, `j = period * t + b`, and gets exact ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd

from attrs import define, field, frozen

from .guard import Guard
from .index import Clamp, FloorDiv, Index, Indirect, Mod, Primary, Var, as_index, floordiv, modulo, primary_index
from .mixed_radix import Digit, digit_of, digits_of, elimination_key
from .traversal import indirects, substitute, variables


@frozen
class Inverse:
    """All iterations that read one element.

    `values` gives the solved variables; `free` are summed over; `guards` and `matches` (an indirect index equals a
    value) must hold. `phases` maps an axis of the element to the period with which its residues differ. `empty`:
    nothing reads the element. `unique`: the digits of the access determine the values, each variable by one equation.
    """

    values: Mapping[Var, Index]
    free: tuple[Var, ...]
    guards: tuple[Guard, ...] = ()
    matches: tuple[tuple[Indirect, Index], ...] = ()
    phases: Mapping[int, int] = field(factory=dict)
    empty: bool = False
    unique: bool = True


def invert(
    access: Sequence[Index], element: Sequence[Index], domain: Sequence[Var], by_digits: bool = False
) -> Inverse:
    """Solve `access(domain) = element` for the variables of `domain`.

    Guards of a `unique` solution bound its digits and imply the variables' ranges: `by_digits` leaves these out.
    """
    inverter = _Inverter(set(domain), by_digits)
    pending = [_Equation(left, right, axis) for axis, (left, right) in enumerate(zip(access, element, strict=True))]
    while pending:
        pending.sort(key=inverter.difficulty)
        equation = pending.pop(0)
        pending.extend(inverter.take(equation, pending))
    return inverter.result(domain)


@frozen
class _Equation:
    """`left = right`: the left side holds unknowns, the right side none; `axis` is where it came from."""

    left: Index
    right: Index
    axis: int


@define
class _Inverter:
    """State of the derivation."""

    unknown: set[Var]
    by_digits: bool
    values: dict[Var, Index] = field(factory=dict)
    guards: list[Guard] = field(factory=list)
    matches: list[tuple[Indirect, Index]] = field(factory=list)
    phases: dict[int, int] = field(factory=dict)
    fresh: list[Var] = field(factory=list)
    empty: bool = False
    unique: bool = True

    def difficulty(self, equation: _Equation) -> tuple[int, int]:
        """Return a sort key for equations.

        Equations whose solution leaves nothing free come first: digits are joined when all of them are known.
        """
        left = substitute(equation.left, self.values)
        count = sum(v in self.unknown for v in variables(left))
        if indirects(left):
            return 3, count
        if all(isinstance(a, Var) or not variables(primary_index(a)) & self.unknown for a, _ in left.terms):
            return 0, count
        return (1, count) if len(left.terms) > 1 else (2, -count)

    def take(self, equation: _Equation, others: list[_Equation]) -> list[_Equation]:
        """Solve one equation; return those that it leads to."""
        left = substitute(equation.left, self.values)
        right = substitute(equation.right, self.values)
        if (
            len(left.terms) == 1
            and isinstance(left.terms[0][0], Indirect)
            and left.const == 0
            and left.terms[0][1] == 1
        ):
            self.matches.append((left.terms[0][0], right))
            self.unique = False
            return []
        if variables(equation.left) & self.values.keys() and left != right:
            self.unique = False
        loose = Index(0, tuple((a, f) for a, f in right.terms if variables(primary_index(a)) & self.unknown))
        left, right = left - loose, right - loose
        known = Index(
            left.const, tuple((a, f) for a, f in left.terms if not variables(primary_index(a)) & self.unknown)
        )
        left, right = left - known, right - known
        if not left.terms:
            self.require(Guard(right, 0, 1))
            return []
        plain = [(a, f) for a, f in left.terms if isinstance(a, Var)]
        wild = [(a, f) for a, f in left.terms if not isinstance(a, Var)]
        if not wild:
            self._affine(dict(plain), right, equation.axis)
            return []
        if len(left.terms) == 1 and abs(wild[0][1]) == 1:
            return self._primary(wild[0][0], right * wild[0][1], equation.axis, others)
        digits = digits_of(left, right)
        if digits is None and len(wild) == 1 and abs(wild[0][1]) == 1:
            return self._primary(wild[0][0], (right - Index(0, tuple(plain))) * wild[0][1], equation.axis, others)
        if digits is not None:
            parts, guards = digits
            for guard in guards:
                self.require(guard)
            return [_Equation(primary_index(a), value, equation.axis) for a, value in parts]
        return self._deviation(plain, wild, left, right, equation.axis)

    # ---- one primary

    def _primary(self, primary: Primary, value: Index, axis: int, others: list[_Equation]) -> list[_Equation]:
        assert not isinstance(primary, Var)
        if isinstance(primary, (FloorDiv, Mod)):
            base, digit = digit_of(primary, value)
            return [_Equation(base, self._join(base, [digit, *self._siblings(base, others)]), axis)]
        self.unique = False
        if isinstance(primary, Clamp):
            low, last = primary.arg.bounds()
            before = max(0, primary.low - low)
            argument = value + self._new(1 + before + max(0, last - primary.high)) - before
            self.require(Guard(Index(0, ((Clamp(argument, primary.low, primary.high), 1),)) - value, 0, 1))
            return [_Equation(primary.arg, argument, axis)]
        self.matches.append((primary, value))
        return []

    def _siblings(self, base: Index, others: list[_Equation]) -> list[Digit]:
        """Return the digits that other equations give to a base, and strike those equations."""
        found: list[Digit] = []
        for other in tuple(others):
            left = substitute(other.left, self.values)
            primary = left.terms[0][0] if len(left.terms) == 1 and left.const == 0 and left.terms[0][1] == 1 else None
            if isinstance(primary, (FloorDiv, Mod)):
                known, digit = digit_of(primary, substitute(other.right, self.values))
                if known == base:
                    others.remove(other)
                    found.append(digit)
        return found

    def _join(self, base: Index, digits: list[Digit]) -> Index:
        """Return the value of a base from its digits; where none is given, any will do."""
        total, position = as_index(0), 1
        for digit in sorted(digits, key=lambda d: d.weight):
            if digit.weight % position:  # digits that overlap: each stands alone
                self.require(Guard(digit.of(base) - digit.value, 0, 1))
                self.unique = False
                continue
            total = total + self._new(digit.weight // position) * position + digit.value * digit.weight
            if digit.size:
                self.require(Guard(digit.value, 0, digit.size))
            position = digit.weight * digit.size
            if not digit.size:
                self.unique &= base.bounds()[0] >= 0
                return total
        low, high = base.bounds()
        self.unique &= low >= 0 and max(position, high + 1) % position == 0
        first, last = low // position, high // position
        return total + (self._new(last - first + 1) + first) * position

    def _deviation(
        self,
        plain: Sequence[tuple[Primary, int]],
        wild: Sequence[tuple[Primary, int]],
        left: Index,
        right: Index,
        axis: int,
    ) -> list[_Equation]:
        """Let an index that is not affine take every value of its range, and keep those that satisfy the equation."""
        low, high = Index(0, tuple(wild)).bounds()
        self.unique = False
        self.require(Guard(left - right, 0, 1))
        room = max((v.extent for v in variables(left) & self.unknown), default=1)
        if not plain or high - low + 1 >= room:
            return []
        return [_Equation(Index(0, tuple(plain)), right - low - self._new(high - low + 1), axis)]

    # ---- sums of variables

    def _affine(self, terms: dict[Primary, int], right: Index, axis: int) -> None:
        """Solve a sum of unknown variables: digit by digit where that is unique, else for the longest of them."""
        found = digits_of(Index(0, tuple(sorted(terms.items(), key=lambda t: t[0].text))), right)
        if found is not None:
            parts, guards = found
            for guard in guards:
                self.require(guard)
                if not guard.always:
                    self._note_phase(guard.index, axis)
            for primary, value in parts:
                assert isinstance(primary, Var)
                self.set(primary, value)
            return
        self._eliminate(
            min((v for v in terms if isinstance(v, Var)), key=lambda v: elimination_key(v, terms)), terms, right, axis
        )

    def _eliminate(self, var: Var, terms: dict[Primary, int], right: Index, axis: int) -> None:
        self.unique = False
        factor = terms[var]
        if factor < 0:
            factor, right, terms = -factor, -right, {a: -f for a, f in terms.items()}
        rest = right
        others = [(a, f) for a, f in terms.items() if a != var and isinstance(a, Var)]
        helper = min(others, key=lambda t: gcd(factor, t[1]), default=None) if factor > 1 else None
        for other, coefficient in others:
            if helper is None or other != helper[0]:
                rest = rest - as_index(other) * coefficient
        if helper is None:
            self.require(Guard(modulo(rest, factor), 0, 1))
            self.set(var, floordiv(rest, factor))
            return
        self._residues(var, factor, helper[0], helper[1], rest, axis)

    def _residues(self, var: Var, factor: int, helper: Var, coefficient: int, rest: Index, axis: int) -> None:
        """Solve `factor * var + coefficient * helper = rest`: the helper runs through one residue class."""
        common = gcd(factor, coefficient)
        step = factor // common
        self.require(Guard(modulo(rest, common), 0, 1))
        self._note_phase(modulo(rest, common), axis, factor)
        if step == 1:
            self.set(var, floordiv(rest - as_index(helper) * coefficient, factor))
            return
        inverse = pow(coefficient // common, -1, step)
        residue = modulo(floordiv(rest, common) * inverse, step)
        self._note_phase(residue, axis, factor)
        count = -(-(helper.extent - residue.const) // step) if residue.is_const else -(-helper.extent // step)
        if count <= 0:
            self.empty = True
            count = 1
        turn = self._new(count)
        self.set(helper, turn * step + residue)
        base = floordiv(rest, factor) if coefficient == 1 else floordiv(rest - residue * coefficient, factor)
        self.set(var, base - turn * (coefficient // common))

    # ---- bookkeeping

    def set(self, var: Var, value: Index) -> None:
        """Give a variable its value; it must lie in its range."""
        value = substitute(value, self.values)
        self.unknown.discard(var)
        self.values = {v: substitute(i, {var: value}) for v, i in self.values.items()}
        self.values[var] = value
        if not self.by_digits:
            self.require(Guard(value, 0, var.extent))

    def require(self, guard: Guard) -> None:
        """Note a condition; one that never holds makes the solution empty."""
        self.empty = self.empty or guard.never
        self.guards.append(guard)

    def _note_phase(self, index: Index, axis: int, period: int = 0) -> None:
        """Note that a condition depends on the residue of the element's index."""
        for primary, _ in index.terms:
            if isinstance(primary, Mod) and not variables(primary_index(primary)) & (self.unknown | set(self.fresh)):
                self.phases[axis] = max(self.phases.get(axis, 1), period or primary.den)

    def _new(self, extent: int) -> Index:
        """Return a fresh variable, unknown unless digits alone count."""
        var = Var(f".q{len(self.fresh)}", extent)
        self.fresh.append(var)
        if extent > 1 and not self.by_digits:
            self.unknown.add(var)
        return as_index(var)

    def result(self, domain: Iterable[Var]) -> Inverse:
        """Put the solution together."""
        values = self.values
        guards = [Guard(substitute(g.index, values), g.low, g.high) for g in self.guards]
        free = tuple(v for v in (*domain, *self.fresh) if v not in values and v.extent > 1)
        kept = tuple(dict.fromkeys(g for g in guards if not g.always))
        return Inverse(values, free, kept, tuple(self.matches), self.phases, self.empty, self.unique)
