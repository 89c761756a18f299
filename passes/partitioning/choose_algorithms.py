"""Choice of algorithms: replaces nodes by the cheapest of their declared algorithms.

Each alternative becomes a small graph with the pointwise nodes that follow it, as they fuse into its last kernel. It is
partitioned like any graph (`passes.costs.candidate_subgraphs`) and costs the sum of its groups' costs. Nodes that
depend only on constants (transformed filters) are computed by the compiler and cost nothing. The cheapest alternative
replaces the node; the node stays where none is cheaper. Without a measurement an alternative has to be cheaper by more
than the error of the cost model, which has searched the best candidate schedules of all kernels. Equal nodes are
decided once.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from math import inf, prod
from typing import TypeAlias

from attrs import field, frozen

from ...ir import MATH_MODES, CutsError, FusedGroup, Graph, Mode, Node, Target, attributes_key
from ...numerics import amplification, epsilon
from ...ops import program_costs
from ...ops.language import Instances
from ..costs import CandidateSubgraph, LocalExecutor, SubgraphKernels, needed_operations
from ..fusion import GroupEvaluator, Order, form_key, store_foldings, widens_bytes
from .algorithm_graphs import replace_node, with_followers, without_known

_LOG = logging.getLogger("cuts.passes")
#: Share of the terms of a declaration's longest sum that those of an algorithm may have which no time decides about.
MAX_TERMS_SHARE = 0.25
#: Share of the time that an alternative has to save, as it needs more memory and rounds more.
MIN_SAVED_SHARE = 0.05
#: The same by the cost model alone, whose ratios are up to 0.26 above measured ones, and 0.12 below.
MIN_MODELLED_SAVED_SHARE = 0.15
#: Share by which the model must prefer a declaration so that no measurement is needed.
MODEL_ERROR_SHARE = 0.25
#: Largest ratio of a declaration's time to that at the peak rates of the machine.
MAX_PEAK_RATIO = 4.0
#: Largest ratio of a kernel's time to that by a search with the cost model.
MAX_SEARCH_RATIO = 1.5
#: Largest relative rounding error of an algorithm in a type of few digits: that of Winograd's larger tiles is eight
#: times that of a sum of products.
MAX_ROUNDING_ERROR = 2.0**-8
#: Epsilon of types that are precise enough for every algorithm.
MAX_EXACT_EPSILON = 2.0**-20
#: The alternatives of a node, the declaration itself under "".
Fragments: TypeAlias = Mapping[str, CandidateSubgraph]
#: The kernels of alternatives.
Plans: TypeAlias = Mapping[tuple[Hashable, str], SubgraphKernels]


@frozen
class AlgorithmChoice:
    """Costs of a node's alternatives by name, its declaration under "".

    `seconds` are measured where a measurement exists; `searched` are seconds by a search with the cost model.
    """

    node: str
    seconds: Mapping[str, float]
    searched: Mapping[str, float]

    @property
    def challenger(self) -> str:
        """Name of the cheapest alternative; "" where the declaration is certainly faster."""
        name = min((n for n in self.seconds if n), key=lambda n: (self.seconds[n], n), default="")
        return name if (1 - MODEL_ERROR_SHARE) * self.seconds[name] < self.seconds[""] < inf else ""

    @property
    def modelled_best(self) -> str:
        """Name of the best modelled alternative; "" where none is certain."""
        return _cheapest(self.searched, MIN_MODELLED_SAVED_SHARE)


def _cheapest(seconds: Mapping[str, float], margin: float) -> str:
    """Return the cheapest name, "" where it does not save the `margin` of the declaration's time."""
    if seconds[""] == inf:
        return ""
    name = min(seconds, key=lambda n: (seconds[n], n))
    return name if seconds[name] < (1 - margin) * seconds[""] else ""


@frozen
class ChooseAlgorithms:
    """Replaces nodes by their cheapest algorithms.

    `choices` lists the compared alternatives, `used` the algorithm of each new node, `replaced` that of each old
    one.

    `submit` has the alternatives partitioned into kernels, all of them at once. `evaluator` returns the costs of these
    kernels. A second run, with other costs, compares the same kernels. The dims of the graph's values are stored in
    `orders`. A declaration that takes less than `least` seconds stays. While measured times of the kernels of both are
    not `known`, an alternative has to save more, and a declaration that takes less than `small` seconds stays. With
    `only`, just the named nodes are considered. Where it `asks`, the evaluator is queried for undecided kernels too, so
    that they may be measured.
    """

    instances: Instances
    evaluator: GroupEvaluator
    target: Target
    mode: Mode
    submit: Callable[[Sequence[CandidateSubgraph]], Callable[[], Sequence[SubgraphKernels]]] = LocalExecutor().submit
    math: str = ""
    known: Callable[[FusedGroup], bool] = lambda form: True
    least: float = 0.0
    small: float = 0.0
    orders: Mapping[str, Order] = field(factory=dict)
    only: Collection[str] | None = None
    prefetch: Callable[[Sequence[FusedGroup]], object] = lambda groups: None
    asks: bool = True
    choices: list[AlgorithmChoice] = field(factory=list)
    used: dict[str, str] = field(factory=dict)
    replaced: dict[str, str] = field(factory=dict)
    plans: dict[Hashable, Mapping[str, SubgraphKernels]] = field(factory=dict)
    keys: dict[str, Hashable] = field(factory=dict)
    peaks: dict[Hashable, float] = field(factory=dict)
    pending: dict[frozenset[Hashable], Callable[[], None]] = field(factory=dict)

    def begin(self, graph: Graph) -> None:
        """Start to partition declarations and promising alternatives in other processes.

        It does not wait for the times of the declarations, but uses their upper bounds.
        """
        fresh = self._fresh(graph, self._candidate_algorithms(graph))
        if not fresh:
            return
        alternatives = self._promising(fresh, {key: MAX_PEAK_RATIO * self.peaks[key] for key in fresh})
        asked = {**{(key, ""): fragments[""] for key, fragments in fresh.items()}, **alternatives}
        wait = self.submit([*asked.values()])
        self.pending[frozenset(fresh)] = lambda: self._keep(fresh, {}, dict(zip(asked, wait(), strict=True)))

    def run(self, graph: Graph) -> Graph:
        """Return the graph with the chosen algorithms in it."""
        self.choices.clear()
        self.used.clear()
        self.replaced.clear()
        nodes = self._candidate_algorithms(graph)
        for keys in [keys for keys in self.pending if not keys.isdisjoint(self.keys[name] for name in nodes)]:
            self.pending.pop(keys)()
        fresh = self._fresh(graph, nodes)
        if fresh:
            whole, others = self._plan_declarations(fresh)
            self._keep(fresh, whole, self._cut(others))
        if self.asks:
            plans = (self.plans[self.keys[name]] for name in nodes)
            self.prefetch([form for each in plans for found in each.values() if found for form, _ in found.costs])
        result = graph
        for node in graph.nodes:
            if node.name not in nodes:
                continue
            kernels = self.plans[self.keys[node.name]]
            searched = {name: inf if found is None else found.searched for name, found in kernels.items()}
            choice = AlgorithmChoice(node.name, {name: self._seconds(p) for name, p in kernels.items()}, searched)
            self.choices.append(choice)
            if best := self._best_algorithm(choice, kernels, self.peaks[self.keys[node.name]]):
                self.replaced[node.name] = best
                result = self.replace(result, node, best)
        return result

    def _candidate_algorithms(self, graph: Graph) -> Mapping[str, Collection[str]]:
        """Return the algorithms of each node that may profit from one."""
        bytes_ = {v for n in graph.nodes if widens_bytes(self.instances.of_node(n, graph).program) for v in n.outputs}
        asked = [n for n in graph.nodes if self.only is None or n.name in self.only]
        asked = [n for n in asked if len(bytes_.intersection(n.operands)) < 2]  # their sums of products are exact
        nodes = {n.name: a for n in asked if (a := self.instances.of_node(n, graph).algorithms)}
        parts = {n.name: with_followers(n, graph, self.instances) for n in graph.nodes if n.name in nodes}
        keys = self.keys
        keys.update({name: self._key(part, graph) for name, part in parts.items()})
        precise = {name: self._precise(part, nodes[name]) for name, part in parts.items()}
        for name, part in parts.items():
            if keys[name] not in self.peaks:
                self.peaks[keys[name]] = self._estimate(part)
        long = {name for name in parts if MAX_PEAK_RATIO * self.peaks[keys[name]] >= self.least}
        return {name: algorithms for name, algorithms in precise.items() if algorithms and name in long}

    def _fresh(self, graph: Graph, nodes: Mapping[str, Collection[str]]) -> Mapping[Hashable, Fragments]:
        """Return the alternatives of nodes that are neither partitioned yet nor pending."""
        begun = {key for keys in self.pending for key in keys}.union(self.plans)
        first: dict[Hashable, str] = {}
        for name in nodes:
            if self.keys[name] not in begun:
                first.setdefault(self.keys[name], name)
        found = {n.name: n for n in graph.nodes if n.name in first.values()}
        parts = {name: with_followers(node, graph, self.instances) for name, node in found.items()}
        return {key: self._fragments(parts[name], graph, nodes[name]) for key, name in first.items()}

    def _best_algorithm(self, choice: AlgorithmChoice, plans: Mapping[str, SubgraphKernels], peak: float) -> str:
        """Return the algorithm that replaces a node: the best by measurement, or by the model where it is not measured.

        By the model a declaration stays that is small; it takes `peak` seconds at the peak rates of the machine.
        """
        measured = {name: choice.seconds[name] for name, kernels in plans.items() if self._is_measured(kernels)}
        if "" in measured and {choice.challenger, choice.modelled_best} & {*measured}:
            return _cheapest(measured, MIN_SAVED_SHARE)
        return choice.modelled_best if min(MAX_PEAK_RATIO * peak, choice.searched[""]) >= self.small else ""

    def with_shortest_sums(self, graph: Graph) -> Graph:
        """Return the graph with algorithms of far shorter sums.

        No time decides. Sums depend on reduced extents alone, but for filters, so that nodes have one operand.
        """
        result = graph
        for node in graph.nodes:
            algorithms = self.instances.of_node(node, graph).algorithms if len(node.operands) == 1 else ()
            if not algorithms:
                continue
            part = with_followers(node, graph, self.instances)
            made = {name: self._replace_first(part, name) for name in self._precise(part, algorithms)}
            terms = {name: self._longest_sum(each) for name, each in made.items() if each is not None}
            best = min(terms, key=lambda name: terms[name], default="")
            if best and terms[best] < MAX_TERMS_SHARE * self._longest_sum(part):
                result = self.replace(result, node, best)
                self.replaced[node.name] = best
        return result

    def _longest_sum(self, graph: Graph) -> int:
        """Return the terms of the longest reduction of a graph."""
        programs = (self.instances.of_node(node, graph).program for node in graph.nodes)
        return max(prod(v.extent for v in s.reduce) for program in programs for s in program.statements)

    def replace(self, graph: Graph, node: Node, algorithm: str) -> Graph:
        """Replace a node by an algorithm in the graph; record its nodes."""
        before = {n.name for n in graph.nodes}
        result = replace_node(graph, node, algorithm, self.instances)
        self.used.update({n.name: algorithm for n in result.nodes if n.name not in before})
        return result

    @property
    def kernel_forms(self) -> tuple[dict[Hashable, FusedGroup], dict[Hashable, FusedGroup]]:
        """Forms of the kernels of the chosen alternatives, and of the others."""
        chosen: dict[Hashable, FusedGroup] = {}
        others: dict[Hashable, FusedGroup] = {}
        for choice in self.choices:
            for name, found in self.plans[self.keys[choice.node]].items():
                side = chosen if name == self.replaced.get(choice.node, "") else others
                side.update({form_key(form): form for form, _ in (found.costs if found is not None else ())})
        return chosen, {key: form for key, form in others.items() if key not in chosen}

    @property
    def questions(self) -> list[list[FusedGroup]]:
        """Kernels of each declaration and of its best alternative, to be measured.

        Those come first that the model does not decide for certain, ordered by the seconds that depend on the answer,
        over all places together.
        """
        stakes: defaultdict[Hashable, float] = defaultdict(float)
        found = {self.keys[choice.node]: self._compared_kernels(choice) for choice in self.choices}
        certain = {self.keys[choice.node]: choice.challenger == choice.modelled_best for choice in self.choices}
        for choice in self.choices:
            difference = choice.seconds[""] - choice.seconds[choice.challenger] if choice.challenger else 0.0
            stakes[self.keys[choice.node]] += abs(difference)
        return [found[key] for key in sorted(found, key=lambda key: (certain[key], -stakes[key]))]

    def _compared_kernels(self, choice: AlgorithmChoice) -> list[FusedGroup]:
        """Return the kernels of a declaration and of its cheapest alternative."""
        plans = self.plans[self.keys[choice.node]]
        found = [plans[name] for name in dict.fromkeys(("", choice.challenger))]
        return [form for kernels in found if kernels is not None for form, _ in kernels.costs]

    def _precise(self, part: Graph, names: Collection[str]) -> Collection[str]:
        """Return the algorithms of the first node of a part that keep enough digits of its types and its products."""
        (node, *_), types = part.nodes, part.types
        floats = [types[v].dtype for v in (*node.inputs, *node.outputs) if v is not None and types[v].dtype.is_float]
        products = MATH_MODES[self.math].epsilon if self.math else 0.0
        rounded = max((products, *map(epsilon, floats)))
        if rounded <= MAX_EXACT_EPSILON:
            return names
        operands = [None if v is None else types[v] for v in node.inputs]
        possible = [n for n in names if self._replace_first(part, n) is not None]
        return [n for n in possible if rounded * amplification(node, operands, n, self.instances) <= MAX_ROUNDING_ERROR]

    def _replace_first(self, part: Graph, name: str) -> Graph | None:
        """Return a part with an algorithm instead of its first node; None where the steps do not fit its types."""
        try:
            return replace_node(part, part.nodes[0], name, self.instances)
        except CutsError as error:
            node = part.nodes[0]
            _LOG.info("cuts: node '%s' (%s): algorithm '%s' is left out: %s", node.name, node.op, name, error)
            return None

    def _fragments(self, part: Graph, graph: Graph, names: Collection[str]) -> Mapping[str, CandidateSubgraph]:
        """Return each alternative of the first node of a part, without nodes that are constant at compile time."""
        fixed = frozenset(v for v in part.inputs if v in graph.constants)
        orders = {v: self.orders[v] for v in (*part.inputs, *part.outputs) if v in self.orders}
        made = {name: found for name in names if (found := self._replace_first(part, name)) is not None}

        def fragment(whole: Graph) -> CandidateSubgraph:
            known = set(fixed)
            rest = without_known(whole, known)
            return CandidateSubgraph(
                rest,
                needed_operations(self.instances.vocabulary, rest),
                self.target,
                self.mode,
                self.math,
                known=frozenset(known.intersection(rest.inputs)),
                orders=orders,
            )

        return {name: fragment(each) for name, each in {"": part, **made}.items()}

    def _key(self, part: Graph, graph: Graph) -> Hashable:
        """Return the key of all that the alternatives of a part depend on."""
        names = {v: n for n, v in enumerate(part.types)}
        members = tuple(
            (n.op, tuple(names.get(v or "") for v in n.inputs), attributes_key(n.attributes)) for n in part.nodes
        )
        constants = tuple(sorted(names[v] for v in part.inputs if v in graph.constants))
        orders = tuple((names[v], self.orders[v]) for v in (*part.inputs, *part.outputs) if v in self.orders)
        return members, tuple(part.types.values()), constants, orders

    def _plan_declarations(
        self, fresh: Mapping[Hashable, Fragments]
    ) -> tuple[Plans, dict[tuple[Hashable, str], CandidateSubgraph]]:
        """Partition the declarations of new parts; return their kernels, and the alternatives that may be faster."""
        whole = self._cut({(key, ""): fragments[""] for key, fragments in fresh.items()})
        seconds = {key: found.searched for (key, _), found in whole.items() if found is not None}
        return whole, self._promising(fresh, {key: s for key, s in seconds.items() if s >= self.least})

    def _promising(
        self, fresh: Mapping[Hashable, Fragments], seconds: Mapping[Hashable, float]
    ) -> dict[tuple[Hashable, str], CandidateSubgraph]:
        """Return the alternatives that may be faster than declarations of these seconds.

        Those with the largest savings over all places stand at both ends, where workers and this process begin.
        """
        uses = Counter(self.keys.values())
        others = {
            (key, name): each
            for key in seconds
            for name, each in fresh[key].items()
            if name and _may_be_faster(each, seconds[key])
        }
        gains = {
            (key, name): uses[key] * (seconds[key] - self._estimate(each.graph)) for (key, name), each in others.items()
        }
        ranked = sorted(gains, key=lambda place: -gains[place])
        return {place: others[place] for place in (*ranked[0::2], *reversed(ranked[1::2]))}

    def _keep(self, fresh: Mapping[Hashable, Fragments], whole: Plans, found: Plans) -> None:
        """Store the kernels of new parts, and their foldings, which recur in the whole graph."""
        for each in (*whole.values(), *found.values()):
            store_foldings(() if each is None else each.foldings)
        for key, fragments in fresh.items():
            self.plans[key] = {name: {**whole, **found}.get((key, name)) for name in fragments}

    def _estimate(self, graph: Graph) -> float:
        """Return the seconds of a fragment at peak rates, one kernel for each node that is no data movement."""
        target = self.target
        costs = [program_costs(self.instances.of_node(node, graph).program) for node in graph.nodes]
        moved = [(c.bytes_read + c.bytes_written) / target.BW_global for c in costs]
        return sum(max(c.flops / target.PERF_peak, m) for c, m in zip(costs, moved, strict=True) if c.flops)

    def _cut(self, fragments: Mapping[tuple[Hashable, str], CandidateSubgraph]) -> Plans:
        return dict(zip(fragments, self.submit([*fragments.values()])(), strict=True)) if fragments else {}

    def _is_measured(self, kernels: SubgraphKernels) -> bool:
        return kernels is not None and all(self.known(form) for form, _ in kernels.costs)

    def _seconds(self, kernels: SubgraphKernels) -> float:
        """Return the seconds of kernels, by the model's search unless all of them are measured."""
        if kernels is None:
            return inf
        measured = self._is_measured(kernels)
        costs = [self.evaluator.cost(form) for form, _ in kernels.costs] if self.asks or measured else []
        return kernels.total(costs) if measured else kernels.searched


def _may_be_faster(fragment: CandidateSubgraph, declaration: float) -> bool:
    """Return whether an alternative's memory traffic, with transformed filters, takes less than the declaration may."""
    types = fragment.graph.types
    moved = sum(types[v].nbytes for v in (*fragment.graph.inputs, *fragment.graph.outputs))
    least = fragment.target.launch_time + moved / fragment.target.BW_global
    return least < MAX_SEARCH_RATIO * declaration
