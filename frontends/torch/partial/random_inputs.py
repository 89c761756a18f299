"""Random numbers as inputs of captured graphs: PyTorch draws those of eager.

    def forward(x): a = x * 2;  b = rand(3);  return a + b
      ->   def draw(): return rand(3)        def forward(x, b): a = x * 2;  return a + b

A call that needs an input, as of probabilities or of a tensor's shape, stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from attrs import frozen
from torch._functorch._aot_autograd.utils import make_boxed_func

#: Compiles a captured module for example inputs to a function of a list of arguments.
CompilePart: TypeAlias = Callable[[Any, Sequence[Any]], Any]
#: Draws random numbers, in the order in which a graph draws them.
Draw = Callable[[], Sequence[torch.Tensor]]


@frozen(eq=False)
class SeparatedDraws:
    """Captured module whose last inputs are random numbers.

    `draw` returns these numbers for a call.
    """

    module: torch.fx.GraphModule
    draw: Draw
    examples: tuple[torch.Tensor, ...]


def with_drawn_inputs(compile_part: CompilePart) -> CompilePart:
    """Return the compilation of a module with random numbers as inputs."""

    def compile_drawn(module: Any, inputs: Sequence[Any]) -> Any:
        separated = separate_draws(module)
        if separated is None:
            return compile_part(module, inputs)
        function = compile_part(separated.module, [*inputs, *separated.examples])
        return make_boxed_func(lambda *given: function([*given, *separated.draw()]))

    return compile_drawn


def separate_draws(module: torch.fx.GraphModule) -> SeparatedDraws | None:
    """Return a captured module with random numbers as inputs, None without draws.

    Of dropout, which has a generator of its own, there are none.
    """
    free: set[torch.fx.Node] = set()  # nodes that depend on no input
    for node in module.graph.nodes:
        if node.op == "call_function" and all(source in free for source in node.all_input_nodes):
            free.add(node)
    draws = [node for node in free if _is_draw(node)]
    if not draws:
        return None
    draws = [node for node in module.graph.nodes if node in draws]
    drawing = torch.fx.GraphModule(module, _drawing_graph(module.graph, free, draws))
    examples = tuple(node.meta["val"] for node in draws)
    return SeparatedDraws(torch.fx.GraphModule(module, _rest(module.graph, draws)), drawing, examples)


def _is_draw(node: torch.fx.Node) -> bool:
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
        and not target._schema.is_mutable
        and isinstance(node.meta.get("val"), torch.Tensor)
    )


def _drawing_graph(graph: torch.fx.Graph, free: set[torch.fx.Node], draws: Sequence[torch.fx.Node]) -> torch.fx.Graph:
    made, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in graph.nodes:
        if node in free:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[node] for node in draws))
    made.eliminate_dead_code()
    return made


def _rest(graph: torch.fx.Graph, draws: Sequence[torch.fx.Node]) -> torch.fx.Graph:
    made, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        copies[node] = made.node_copy(node)
    for node in draws:
        copies[node] = made.placeholder(node.name)
        copies[node].name, copies[node].meta = node.name, dict(node.meta)
    for node in graph.nodes:
        if node not in copies:
            copies[node] = made.node_copy(node, copies.__getitem__)
    return made
