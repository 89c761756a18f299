"""The way from a model to a plan that runs: what `cuts.build` and the command line share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from .backends.cuda_compile import Cubin, compile_kernels, toolchains
from .backends.reference import accumulations, run_reference
from .backends.targets import find_target
from .ir.compiled import CompiledGraph, CompileOptions, Mode
from .ir.errors import GraphError, PlanError, UsageError
from .ir.graph import Graph
from .ir.target import Target
from .ir.types import TensorType
from .ir.verify_graph import quote
from .loading import ModelLike, Shapes, Spec, load_model, load_spec, spec_of_texts
from .passes.workload import Selector
from .runtime.arrays import checked_inputs, random_inputs
from .runtime.executor import Session
from .runtime.plan import Model, Plan, make_plan
from .runtime.plan_file import load_plan, save_plan
from .runtime.split_file import is_staged
from .runtime.verify import Comparison, compare, tolerance

if TYPE_CHECKING:
    from .split import SplitPlan

#: What compiling and running take, with the forms that models and vocabularies are read from.
__all__ = (
    "MODES", "CompiledPlan", "ModelLike", "Shapes", "Spec", "build", "build_graph", "compile_binaries", "compile_model", "load",
    "load_model", "load_spec", "plan_of", "spec_of_texts",
)  # fmt: skip

MODES: tuple[Mode, ...] = ("no-fusion", "fusion", "mixed")


def compile_model(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: Selector | None = None) -> CompiledGraph:
    """Run the passes on a graph: the one place where passes and printers meet. A `selector` lets measured times decide."""
    if target.dialect == "reference":
        if options.stop_after or options.print_after:
            raise UsageError("target 'reference' runs no passes, so there is none to print or to stop after")
        return CompiledGraph(graph, (), ())
    from .backends.emit import emit
    from .passes.check_indices import Checked, check_indices
    from .passes.pipeline import compile_graph

    checked = check_indices(graph, spec.registry) if options.debug else Checked(graph, spec.registry)
    compiled = compile_graph(checked.graph, checked.registry, target, options, emit, selector)
    return evolve(compiled, checks=checked.checks)


def compile_binaries(compiled: CompiledGraph | Plan, target: Target) -> tuple[Cubin, ...]:
    """Compile CUDA kernels to cubins where this machine has a compiler; nothing for other targets or without one."""
    if target.dialect != "cuda" or not toolchains():
        return ()
    return compile_kernels(compiled.kernels, target.arch)


class CompiledPlan:
    """A plan and the means to run, check, save and read it."""

    def __init__(self, plan: Plan, cubins: tuple[Cubin, ...] = (), complete: bool = True) -> None:
        self.plan = plan
        self.cubins = cubins
        self.complete = complete
        self._session: Session | None = None

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The kernels: source, geometry and what the compiler chose for each."""
        return self.plan.kernels

    @property
    def target(self) -> Target:
        """What the plan was compiled for."""
        return self.plan.target

    @property
    def name(self) -> str:
        """The model's name."""
        return self.plan.name

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs."""
        return {name: self.plan.types[name] for name in self.plan.inputs}

    @property
    def parts(self) -> tuple[CompiledPlan, ...]:
        """What is compiled together: all of it."""
        return (self,)

    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        """Yield what is compiled together, with its own inputs."""
        yield self, inputs

    @property
    def session(self) -> Session:
        """The plan opened on its device; opened when it is first needed."""
        if self._session is None:
            self._session = Session(self.plan)
        return self._session

    def run(self, inputs: Mapping[str, object], *, on_device: bool = False) -> dict[str, Any]:
        """Run the plan: arrays in by name (NumPy, DLPack, `__cuda_array_interface__`), a dict of arrays out."""
        if self.plan.target.dialect == "reference":
            return self.reference(inputs)
        return self.session.run(inputs, on_device=on_device)

    def reference(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute the outputs in float64 from the declarations, independently of every kernel."""
        model = self._model()
        arrays = checked_inputs(self.plan.types, self.plan.inputs, inputs)
        return run_reference(model.graph, spec_of_texts(model.specs).registry, arrays)

    def reference_values(self, inputs: Mapping[str, object]) -> dict[str, Any]:
        """Compute every value of the model like `reference`, intermediates included."""
        model = self._model()
        arrays = checked_inputs(self.plan.types, self.plan.inputs, inputs)
        values = tuple(value for node in model.graph.nodes for value in node.outputs)
        return run_reference(evolve(model.graph, outputs=values), spec_of_texts(model.specs).registry, arrays)

    def random_inputs(self, seed: int = 0) -> dict[str, Any]:
        """Return random inputs of the right types."""
        return random_inputs(self.plan.types, self.plan.inputs, seed)

    def tolerances(self) -> dict[str, float]:
        """Return the relative error that rounding explains, for every value of the model."""
        model = self._model()
        used = {str(name) for group in self.plan.groups for name in _listed(group.get("algorithms"))}
        collected = accumulations(model.graph, spec_of_texts(model.specs).registry, used)
        return {name: tolerance(model.graph.types[name].dtype, a.length, a.depth) for name, a in collected.items()}

    def verify(self, inputs: Mapping[str, object] | None = None, oracle: Mapping[str, Any] | None = None) -> tuple[Comparison, ...]:
        """Run and compare every output with an oracle: the float64 reference, unless its values are given."""
        given = inputs if inputs is not None else self.random_inputs()
        expected = oracle if oracle is not None else self.reference(given)
        rounded = 1.0 if oracle is None else 2.0  # another implementation rounds as we do, the reference does not
        allowed = {name: rounded * value for name, value in self.tolerances().items()}
        found = self.run(given)
        missing = [name for name in found if name not in expected]
        if missing:
            raise GraphError(f"the oracle has no output {quote(missing[0])}", hint=f"it has: {', '.join(map(quote, expected))}")
        return tuple(compare(name, found[name], expected[name], allowed[name]) for name in self.plan.outputs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan's folder, whole or not at all."""
        save_plan(self.plan, folder)

    def _model(self) -> Model:
        if self.plan.model is None:
            raise PlanError(f"plan {quote(self.plan.name)} does not carry its model, so there is nothing to compare with")
        return self.plan.model


def _listed(value: object) -> Sequence[object]:
    """Return a record's list; nothing where there is none."""
    return value if isinstance(value, (list, tuple)) else ()


def build(
    model: ModelLike,
    target: str | Target = "opencl",
    *,
    shapes: Shapes | None = None,
    spec: Sequence[str | os.PathLike[str]] = (),
    mode: Mode = "mixed",
    budget: float | None = None,
    tune: bool = False,
    frozen: bool = False,
    debug: bool = False,
    options: CompileOptions | None = None,
) -> CompiledPlan:
    """Compile a model for a target; `shapes` fix dynamic dimensions, `spec` names files that declare further operations.

    With `debug` the plan checks every index that comes from data: one out of range is an error when it runs, which names the tensor, the
    position, the value and what was expected. Without it such an index counts as the nearest one, and nothing is written for it.

    With `tune`, candidates are timed on the target's device, for at most `budget` seconds; with `frozen`, only results that the tuning
    database has are used, and a missing one is an error.
    """
    if mode not in MODES:
        raise UsageError(f"unknown mode '{mode}'", hint=f"modes are: {', '.join(MODES)}")
    vocabulary = load_spec(spec)
    machine = find_target(target) if isinstance(target, str) else target
    graph = load_model(model, vocabulary, shapes)
    chosen = options or CompileOptions(mode=mode, budget=budget, debug=debug)
    if not (tune or frozen) or machine.dialect == "reference":
        return build_graph(graph, vocabulary, machine, chosen)
    from .plan_cache import tuned_plan
    from .search.session import tuning_session

    with tuning_session(machine, budget=budget, frozen=frozen) as selector:
        return tuned_plan(graph, vocabulary, machine, chosen, selector)


def build_graph(graph: Graph, spec: Spec, target: Target, options: CompileOptions, selector: Selector | None = None) -> CompiledPlan:
    """Compile a graph that is already loaded."""
    return plan_of(compile_model(graph, spec, target, options, selector), graph, spec, target)


def plan_of(compiled: CompiledGraph, graph: Graph, spec: Spec, target: Target) -> CompiledPlan:
    """Turn what the passes made of a graph into a plan, with cubins where this machine can make them."""
    cubins = compile_binaries(compiled, target)
    plan = make_plan(compiled, target, Model(graph, spec.texts), tuple(cubin.code for cubin in cubins))
    return CompiledPlan(plan, cubins, compiled.complete)


def load(folder: str | os.PathLike[str], functions: Mapping[str, Callable[..., Any]] | None = None) -> CompiledPlan | SplitPlan:
    """Open a plan's folder. A plan is code: load only what you would also run.

    `functions` are those that `cuts.build_split` was given, where it was.
    """
    if not is_staged(folder):
        return CompiledPlan(load_plan(folder))
    from .split import load_split

    return load_split(folder, functions)
