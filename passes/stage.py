"""Stage of the pipeline: a function from one result to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import frozen

from ..ir import CutsError, Graph, PassError, convert_error, naming_faults, print_graph
from .context import CompileContext
from .graph import Pass, run_passes
from .inspection import show_programs, verify_statements, verify_types
from .results import Statements
from .rewrites import Rewrite, rewrite_statements

P = TypeVar("P")
R = TypeVar("R")


@frozen
class Stage(Generic[P, R]):
    """Step of the pipeline.

    `run` returns the result of the stage for the previous one, `show` prints it, `verify` raises a `CutsError` where it
    is invalid. `summary` describes the transformation, and `files` contain it; the table of stages in
    `docs/architecture.md` is made of them.
    """

    name: str
    run: Callable[[P, CompileContext], R]
    show: Callable[[R], str]
    verify: Callable[[R, CompileContext], object]
    summary: str
    files: tuple[str, ...]

    def perform(self, previous: P, context: CompileContext) -> R:
        """Return the stage's result; verify and show it where options ask.

        A result that stays is verified already.
        """
        context.executor.poll()
        with context.budget.stage(self.name), naming_faults(f"stage '{self.name}'"):
            result = self.run(previous, context)
        if context.options.verifies_stages and result is not previous:
            try:
                self.verify(result, context)
            except CutsError as error:
                raise convert_error(error, PassError, f"stage '{self.name}' broke what it made: ") from error
        context.options.report_pass(self.name, lambda: self.show(result))
        return result


def graph_stage(step: Pass) -> Stage[Graph, Graph]:
    """Return a graph pass as a stage, summarised by its class's docstring."""
    summary = f"graph -> graph: {(type(step).__doc__ or '').partition('.')[0].partition(';')[0].strip()}"
    file = "/".join(type(step).__module__.partition(".passes.")[2].split(".")) + ".py"
    return Stage(
        step.name, lambda graph, _: run_passes(graph, [step]), print_graph, verify_types, summary, (file,)
    )  # fmt: skip


def rewrite_stage(rewrite: Rewrite) -> Stage[Statements, Statements]:
    """Return a rewrite of statements as a stage."""

    def run(previous: Statements, context: CompileContext) -> Statements:
        return rewrite_statements(previous, context, rewrite)

    summary = f"statements -> statements: {rewrite.summary}"
    return Stage(rewrite.name, run, show_programs, verify_statements, summary, (rewrite.file,))
