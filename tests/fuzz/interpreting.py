"""Interpretation of a graph's normal forms after all passes.

It needs no device, has no rounding, and takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.ops import Registry
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.grouping.partition import partition
from cuts.passes.fusion.grouping.partitioner import CachedEvaluator, Partitioner
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.graph.base import run_passes
from cuts.passes.layout.pack import pack_constants
from cuts.passes.pipeline import graph_passes
from cuts.passes.split.splitting import Division, Splitting, split_groups

from ..fusion.build import reorder_randomly, run_groups
from .chance import Chance


def interpret(
    graph: Graph, registry: Registry, chance: Chance, inputs: Mapping[str, Any]
) -> tuple[Sequence[Group], dict[str, Any]]:
    """Return the groups of random decisions, and their outputs.

    Every other graph has its tensors in random orders of their dims, too.
    """
    graph = run_passes(graph, graph_passes(registry))
    evaluator = CachedEvaluator(chance.evaluator(chance.evaluator(None)))
    splitting = Splitting(evaluator, evaluator, chance.target)
    programs = build_programs(graph, registry)
    if chance.seed % 2:
        programs = reorder_randomly(programs, np.random.default_rng(chance.seed))
    programs = pack_constants(programs, chance.target)
    views = find_views(programs)
    builder = GroupBuilder(views, Policy(shared_bytes=chance.target.MAX_shared))
    groups: Sequence[Group] = partition(Partitioner(builder, splitting), "mixed")
    groups, views = split_groups(groups, views, lambda form: _division(form, splitting, chance))
    arrays = {
        name: np.asarray(value, float) if value.dtype.kind == "f" else value
        for name, value in {**programs.graph.constants, **inputs}.items()
    }
    return groups, run_groups(list(groups), views, arrays)


def _division(form: FusedGroup, splitting: Splitting, chance: Chance) -> Division:
    """Return how a group's reduction is divided: as costs say; in every third graph into parts, wherever possible."""
    return splitting.division(form) if chance.seed % 3 else Division(parts=2 + chance.seed % 4)
