"""Bisection: the first node with a wrong kernel, in a small model.

A kernel computes several nodes and stores only some of their values. So the first wrong step of a run names the part of
the model between stored values, and that part is compiled again, shorter and shorter, on the reference's values:

    x -> [a -> b -> c] -> y        the kernel of a, b and c stores c, which is wrong
    x -> [a -> b] -> y             compiled alone it is wrong too: b is the node, unless a alone is wrong
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from ...backends import Array
from ...compile import Compile, CompiledPlan
from ...ir import Graph, Node, PlanError, quote, subgraph
from ...runtime import WrongStep, wrong_steps


@frozen
class WrongNode:
    """First node with a wrong kernel, and a small model.

    `inputs` are those of the model. It is wrong where it is compiled alone, unless `alone` is false: then only the
    kernel of the whole plan is.
    """

    node: Node
    step: WrongStep
    kernel: str
    model: Graph
    inputs: Mapping[str, Array]
    alone: bool


def find_wrong_node(
    plan: CompiledPlan, inputs: Mapping[str, Array], compile_part: Compile, notice: Callable[[str], None]
) -> WrongNode | None:
    """Return the first node with a wrong kernel.

    None where every kernel is right.

    Raises `PlanError` for a plan without its model.
    """
    if plan.plan.model is None:
        raise PlanError(f"plan {quote(plan.name)} does not carry its model", hint="compile the model again")
    values = plan.reference_values(inputs)
    step = _first_wrong(plan, inputs, values)
    if step is None:
        return None
    notice(step.text)
    graph = plan.plan.model.graph
    arrays = {**_graph_inputs(plan, inputs), **graph.constants, **values}
    wrong = dict.fromkeys(_model_value(graph, tensor) for tensor in step.tensors)
    search = _Search(graph, _stored_before(plan, step.number), arrays, compile_part, notice)
    node, model, alone = search.run(tuple(wrong))
    kernel = plan.kernels[plan.plan.steps[step.number].kernel].name
    return WrongNode(node, step, kernel, model, search.inputs_of(model), alone)


def _first_wrong(plan: CompiledPlan, inputs: Mapping[str, Array], values: Mapping[str, Array]) -> WrongStep | None:
    """Return the first wrong step; a function that loses digits gets the tolerance of its condition."""
    found = next(wrong_steps(plan.session, inputs, values, plan.tolerances()), None)
    if found is None:
        return None
    return next(wrong_steps(plan.session, inputs, values, plan.conditioned_tolerances(inputs)), None)


def _graph_inputs(plan: CompiledPlan, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of the graph, with the present state."""
    interface = plan.plan.interface
    state = plan.state if interface.state else {}
    return {**{tensor.input: state[name] for name, tensor in interface.state.items()}, **inputs}


def _model_value(graph: Graph, tensor: str) -> str:
    """Return the value of the model that a tensor stores; one of another type has that type as a suffix."""
    return tensor if tensor in graph.types else tensor.rpartition(".")[0]


def _stored_before(plan: CompiledPlan, number: int) -> frozenset[str]:
    """Return the tensors that steps before a step write."""
    pairs = (
        (argument, tensor)
        for step in plan.plan.steps[:number]
        for argument, tensor in zip(plan.kernels[step.kernel].arguments, step.tensors, strict=True)
    )
    return frozenset(tensor for argument, tensor in pairs if argument.written)


@frozen
class _Search:
    """Search within a model: its stored values, the right values of all, and the compiler of a part."""

    graph: Graph
    stored: frozenset[str]
    arrays: Mapping[str, Array]
    compile_part: Compile
    notice: Callable[[str], None]

    def run(self, outputs: tuple[str, ...]) -> tuple[Node, Graph, bool]:
        """Return the first wrong node, and a model that shows it.

        The last value is false where that model is right when it is compiled alone."""
        whole = subgraph(self.graph, outputs, self.stored)
        if not self._is_wrong(whole):
            return whole.nodes[-1], whole, False
        first, last = 0, len(whole.nodes) - 1  # nodes[:last + 1] are wrong
        while first < last:
            middle = (first + last) // 2
            if self._is_wrong(self._model_to(whole, middle)):
                last = middle
            else:
                first = middle + 1
        node = whole.nodes[last]
        single = subgraph(self.graph, node.outputs, frozenset(node.operands))
        return node, single if self._is_wrong(single) else self._model_to(whole, last), True

    def _model_to(self, whole: Graph, number: int) -> Graph:
        """Return the model that ends with a node."""
        return subgraph(self.graph, whole.nodes[number].outputs, self.stored)

    def _is_wrong(self, model: Graph) -> bool:
        """Compile a part of the model and compare it with the reference on right values."""
        self.notice(f"compiling {', '.join(quote(node.name) for node in model.nodes)}")
        results = self.compile_part(model).verify(self.inputs_of(model))
        return not all(result.ok for result in results)

    def inputs_of(self, model: Graph) -> dict[str, Array]:
        """Return the right values of a part's inputs."""
        kinds = {name: model.types[name].dtype.numpy for name in model.inputs}
        return {name: self.arrays[name].astype(kind) for name, kind in kinds.items()}
