"""Names of a program's results: keys and fields, else its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import evolve
from torch.utils._pytree import GetAttrKey, MappingKey, tree_flatten_with_path, tree_unflatten

from ....ir import Graph, Node, fresh_name


def result_names(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Return names of a program's results; constants without a key have none."""
    specs = [
        spec.arg for spec in program.graph_signature.output_specs if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")
    ]
    keys = _keys(program.call_spec.out_spec, len(specs))
    return tuple(key or ("" if hasattr(arg, "value") else arg.name) for key, arg in zip(keys, specs, strict=True))


def _keys(tree: Any, count: int) -> list[str]:
    """Return the path of each result that has a text key."""
    if tree is None or tree.num_leaves != count:
        return [""] * count
    paths = [path for path, _ in tree_flatten_with_path(tree_unflatten(range(count), tree))[0]]
    named = [any(isinstance(_key(step), str) for step in path) for path in paths]
    return [".".join(str(_key(step)) for step in path) if text else "" for path, text in zip(paths, named, strict=True)]


def _key(step: Any) -> object:
    return step.key if isinstance(step, MappingKey) else step.name if isinstance(step, GetAttrKey) else step.idx


def rename_results(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return a graph whose outputs have names of the program."""
    taken, new = set(graph.types) - set(names), dict[str, str]()
    for value, name in names.items():
        new[value] = fresh_name(taken, name)
        taken.add(new[value])

    def rename(node: Node) -> Node:
        inputs = tuple(None if value is None else new.get(value, value) for value in node.inputs)
        return evolve(node, inputs=inputs, outputs=tuple(new.get(value, value) for value in node.outputs))

    return evolve(
        graph,
        outputs=tuple(new.get(value, value) for value in graph.outputs),
        nodes=tuple(map(rename, graph.nodes)),
        types={new.get(value, value): type_ for value, type_ in graph.types.items()},
    )
