"""Adjoints of statements and programs, in index notation.

For a statement `y[w(i)] = sum over r of body(i, r)` that reads `x[f(i, r)]`, every element of x gets

    dx[j] += sum over { (i, r): f(i, r) = j } of dbody/dread * dy[w(i)]

The access map is inverted (`invert`), so that the sum runs over its free variables: a broadcast becomes a sum, a sum a
broadcast, a strided window a sum over its taps, guards stay. A read at a place that an integer names becomes a scatter,
and a scatter a read. `max` and `min` pass the gradient to the first of equal elements (row-major over the reduced
axes), `prod` multiplies by the product of all others. A program is differentiated statement by statement in reverse;
needed intermediates are recomputed from the operands and results, and irrelevant ones are left out (`invariance`: the
maximum that softmax subtracts).

Where a recurrence is part of the program, its intermediates may be saved instead (`Adjoint.forward`): its iterations
are sequential, so that recomputing them takes as long as the first time, and nothing fuses with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve, frozen

from ...ir import Program, Statement, runs
from ..language import live_statements, unroll_loops
from .copy_propagation import propagate_copies
from .factors import name_factors
from .invariance import irrelevant_extrema
from .recurrences import NoReverse, Recurrences
from .terms import Term

#: Most iterations of a recurrence that is unrolled for its gradient.
MAX_UNROLLED_ITERATIONS = 64


@frozen
class Adjoint:
    """Gradients of operands of a program, as a program.

    Its inputs are operands and results of the original program by their names, and gradients of results:
    `result_gradients` maps results to these. `operand_gradients` maps operands to their gradients among the outputs.
    `forward`, where there is one, is the original program with further results, and these are inputs, too.
    """

    program: Program
    result_gradients: Mapping[str, str]
    operand_gradients: Mapping[str, str]
    forward: Program | None = None


def adjoint(program: Program, operands: Sequence[str], results: Sequence[str], *, keep: bool = False) -> Adjoint:
    """Return the gradients of operands, given those of some results.

    Operands that no result depends on are left out.

    With `keep` the gradient of a program with a recurrence reads saved intermediates of the recurrence.
    """
    try:
        named = name_factors(program)
        named = propagate_copies(named) if any(s.step for s in named.statements) else named
        return _Adjoint(named, operands=tuple(operands), results=tuple(results), keep=keep).run()
    except NoReverse:
        written_out = name_factors(unroll_loops(program, "the gradient", MAX_UNROLLED_ITERATIONS))
    return _Adjoint(written_out, operands=tuple(operands), results=tuple(results)).run()


@define
class _Adjoint(Recurrences):
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    keep: bool = False

    def run(self) -> Adjoint:
        self.tensors.update(self.program.tensors)
        gradients = {self.fresh(f"d_{result}"): result for result in self.results}
        for name, result in gradients.items():
            self.tensors[name] = self.tensors[result]
        varying = self._varying()
        skipped = irrelevant_extrema(self.program, self.results)
        parts: dict[str, list[Term]] = {r: [self.result_gradient(n, r)] for n, r in gradients.items() if r in varying}
        written: set[str] = set()
        for step, run in reversed(list(runs(self.program.statements))):
            if step is not None:
                self.reverse(step, [s for s in run if s.target in varying], varying, parts)
                written.update(s.target for s in run)
                continue
            for statement in reversed(run):
                if statement.target not in varying or statement.target in skipped:
                    continue
                if statement.target not in written and not self.settle(statement.target, parts):
                    continue
                written.add(statement.target)
                if statement.target in self.seeds:
                    for tensor, terms in self.pull(statement, varying).items():
                        parts.setdefault(tensor, []).extend(terms)
        found: dict[str, str] = {}
        for operand in self.operands:
            if parts.get(operand):
                found[self.fresh(f"d_{operand}")] = operand
                self.define(next(reversed(found)), operand, parts[operand])
        return self._finish(gradients, found)

    def _varying(self) -> set[str]:
        """Return the tensors through which the operands reach a result, as real numbers."""
        found = {o for o in self.operands if self.tensors[o].dtype.is_float}
        before = -1
        while len(found) > before:  # an iteration may read a tensor that a later statement wrote an iteration earlier
            before = len(found)
            for statement in self.program.statements:
                if self.tensors[statement.target].dtype.is_float and any(r.tensor in found for r in statement.reads):
                    found.add(statement.target)
        return found

    def _finish(self, given: Mapping[str, str], found: Mapping[str, str]) -> Adjoint:
        """Keep the needed statements of the gradients, with those of the original program for its intermediates."""
        original = self.program
        own = live_statements(self.statements, tuple(found))
        inside = self._inside(own) if self.keep else ()
        everything = [*(s for s in original.statements if s.target not in (*original.outputs, *inside)), *own]
        kept = live_statements(everything, tuple(found))
        wanted = {*found, *(tensor for s in kept for tensor in s.tensors_read)}
        inputs = tuple(t for t in (*original.inputs, *original.outputs, *inside, *given) if t in wanted)
        tables = {t: v for t, v in original.constants.items() if t in wanted}
        made = {s.target for s in kept}
        tensors = {t: type_ for t, type_ in self.tensors.items() if t in made or t in inputs or t in tables}
        program = Program(tensors, inputs, tuple(found), tuple(kept), tables)
        return Adjoint(
            propagate_copies(program) if any(s.step for s in kept) else program,
            {n: r for n, r in given.items() if n in inputs},
            found,
            evolve(original, outputs=(*original.outputs, *inside)) if inside else None,
        )

    def _inside(self, statements: Sequence[Statement]) -> tuple[str, ...]:
        """Return the intermediates of a program with a recurrence that statements of its gradient read."""
        original = self.program.statements
        if not any(s.step for s in original):
            return ()
        made = {s.target for s in original} - set(self.program.outputs)
        return tuple(dict.fromkeys(t for s in statements for t in s.tensors_read if t in made))
