"""Small graphs for the tests of this folder, and their passes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import Target
from cuts.ir.segment import FusedGroup
from cuts.ir.text import print_ir
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group, rename_group
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.normalise import Illegal
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.reorder import reorder
from cuts.passes.fusion.views import Views, find_views, loop_iterations
from cuts.passes.layout.accesses import find_aliases
from cuts.passes.layout.fixed_layouts import fixed_tensors

REGISTRY = Registry.builtin()
Line = tuple[str, str, tuple[str | None, ...], dict[str, Any]]


def op(result: str, name: str, *operands: str | None, **attributes: Any) -> Line:
    """One node; several results are separated by spaces."""
    return result, name, operands, attributes


def graph(inputs: Mapping[str, tuple[int, ...] | TensorType], *lines: Line, out: str) -> Graph:
    """Return a graph; `out` names the outputs, separated by spaces.

    Inputs are fp32 where only a shape is given.
    """
    types = {
        name: given if isinstance(given, TensorType) else TensorType(DType.F32, given) for name, given in inputs.items()
    }
    nodes = []
    for number, (result, name, operands, attributes) in enumerate(lines):
        results = tuple(result.split())
        instance = REGISTRY[name].instantiate([None if o is None else types[o] for o in operands], attributes)
        types |= dict(zip(results, instance.output_types, strict=True))
        nodes.append(Node(f"n{number}", name, operands, results, attributes))
    return Graph("test", tuple(inputs), tuple(out.split()), types, tuple(nodes))


def views_of(made: Graph | Programs) -> Views:
    """Programs and views of a graph."""
    return find_views(made if isinstance(made, Programs) else build_programs(made, REGISTRY))


def reorder_randomly(programs: Programs, rng: np.random.Generator) -> Programs:
    """Store some tensors in a random order of their dims.

    Candidates are the tensors that may lie in any order.
    """
    fixed = fixed_tensors(programs, find_aliases(programs))
    free = [t for t, type_ in programs.types.items() if t not in fixed and len(type_.shape) > 1]
    orders = {t: tuple(rng.permutation(len(programs.types[t].shape)).tolist()) for t in free}
    return reorder(programs, {t: order for t, order in orders.items() if rng.random() < 0.7})


def group_builder(made: Graph, **policy: Any) -> GroupBuilder:
    """A workshop for the graph's units."""
    return GroupBuilder(views_of(made), Policy(**policy))


def fuse_units(made: Graph, *parts: str, **policy: Any) -> Group | Illegal:
    """Fuse units given as words, pair by pair from the left.

    Without words, all units are fused.
    """
    shop = group_builder(made, **policy)
    names = [n for part in parts for n in part.split()] or [u for u in shop.units if not shop.units[u].free]
    group: Group | Illegal = shop.single(names[0])
    for name in names[1:]:
        if isinstance(group, Illegal):
            return group
        group = shop.fuse(group, shop.single(name))
    return group


def text(group: Group | Illegal) -> str:
    """Return the normal form over graph tensors, or the reason against it."""
    return (
        group.reason
        if isinstance(group, Illegal)
        else "\n".join(print_ir(s) for s in rename_group(group.form, group.tensors).segments).strip()
    )


def partitioner(made: Graph, target: Target, **policy: Any) -> Partitioner:
    """A partitioner that evaluates by the roofline."""
    return Partitioner(group_builder(made, **policy), Roofline(target))


def random_inputs(made: Graph, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs away from poles.

    Floats lie between 0.1 and 1; integers are 0 or 1.
    """
    rng = np.random.default_rng(seed)
    types = {name: made.types[name] for name in made.inputs}
    return {
        name: rng.uniform(0.1, 1.0, t.shape) if t.dtype.is_float else rng.integers(0, 2, t.shape).astype(t.dtype.numpy)
        for name, t in types.items()
    }


def run_groups(
    groups: list[Group], views: Views, arrays: dict[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Execute groups in order, and return every readable tensor of the graph.

    Groups of loops run many times. Buffers are laid out as the views say.
    """
    count = loop_iterations(views)
    memory: dict[str, np.ndarray[Any, Any]] = {}

    def tensor(name: str, turn: int = 0) -> np.ndarray[Any, Any]:
        storage, type_ = views.storage(name), views.programs.types[name]
        if storage.buffer not in memory:
            floats = type_.dtype.is_float
            size = views.programs.types[storage.buffer].size
            memory[storage.buffer] = np.full(size, np.nan if floats else 0, float if floats else type_.dtype.numpy)
        strides = tuple(memory[storage.buffer].itemsize * s for s in storage.strides)
        return np.lib.stride_tricks.as_strided(memory[storage.buffer][storage.start(turn) :], type_.shape, strides)

    for name, array in arrays.items():
        tensor(name)[...] = array
    runs = [(repeat, list(run)) for repeat, run in groupby(groups, key=lambda group: group.repeat)]
    for group, turn in ((g, turn) for repeat, run in runs for turn in range(count[repeat]) for g in run):
        form: FusedGroup = group.form
        # Elements of its outputs that a group does not write stay as they are, for other tensors may lie there too.
        known = {t: tensor(group.tensors[t], turn).copy() for t in (*form.inputs, *form.outputs)}
        given = {t: array.copy() for t, array in known.items()}
        for name, value in interpret(form, given).items():
            changed = (value != known[name]) & ~((value != value) & (known[name] != known[name]))
            tensor(group.tensors[name], turn)[changed] = value[changed]
    return {name: tensor(name) for name in views.programs.graph.outputs}
