"""Layouts: orders dims of tensors between kernels so that accesses are wide.

A kernel moves 16 bytes at once along one axis only: the one whose neighbours are neighbours in memory, where all other
terms of the address are multiples of 16 bytes. The pass counts, from the accesses of all statements, the instructions
that move their operands and results, and makes the dims innermost that need fewest of them:

* a contraction that matrix instructions compute fetches each factor separately, along a reduced axis or one of the
factor's own; * each other statement reads and writes along one axis, so that the tensors which it connects want the
same dim innermost, and form a *component* that changes as a whole.

Where matrix instructions multiply, a dim may also come after the first one: heads then join as neighbours.

A convolution with taps reads `x[n, c, p + r, q + s]`: with q innermost no address is a multiple of anything, with c
innermost every one is. Inputs and outputs of the graph stay as the caller has them. Views take the order of the tensor
that they show, and the source of a transposed output that of the output. Reduced axes run in the order of the dims of
the largest factor that is no constant, so that channels are added up for one tap after the other, and the channels of a
group in a channels-last image are neighbours. Constants of any size follow: their reduced dims lie in the order of the
reduced axes.

Where matrix instructions multiply nothing in a graph, only components change in which a statement reads through a
window (`x[n, c, p + r, q + s]`), and only to a dim that runs through all of their tensors and that is not reduced:
threads multiply numbers, and want neighbours that they have results for. That is the dim of images, where there are
several: rows of 7 or 35 pixels begin anywhere, those of images at multiples of 16 bytes, for all taps and strides.
Elsewhere the layouts of the caller's tensors count: where a view permutes the dims of an input, or an output permutes
those of its source, views and components are ordered as above, so that a sum over the columns of an input is one.
Other tensors, between products of constants, may have the dims outermost that the next product reduces
(`number_products`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from attrs import evolve, frozen

from ...ir import MMA_INSTRUCTIONS, VALUE_COMBINERS, Statement, Target, TensorType, Var, as_index, is_affine, linearise
from ..fusion import GroupBuilder, Order, Policy, Programs, Unit, Views, form_key, moves_elements, reorder
from ..schedule import is_mma_computable
from .accesses import Aliases, InstructionCosts, StatementAccesses, by_step, dims_of, find_aliases, lines_of, steps
from .components import Component, components, touching_lines, windows
from .constants import order_constants
from .dim_runs import Run, find_runs, rotate_runs
from .fixed_layouts import fixed_tensors, input_independent_tensors, root_tensor, transposed_outputs
from .number_products import NumberCosts, Place, is_between, is_large, number_products, shared_dims, worth
from .pitches import pad_rows, paddable_types

#: Least saving of another order, as part of the instructions that the tensors take at least.
MIN_SAVING = 0.01
#: Most passes over all components.
MAX_ROUNDS = 3


def choose_layouts(
    programs: Programs,
    target: Target,
    math: str = "",
    orders: Mapping[str, Order] | None = None,
    threads: bool = True,
    kept: frozenset[str] = frozenset(),
) -> Programs:
    """Return programs whose tensors lie as their kernels access them.

    `math` is the math mode of contractions of f32. Programs may be a part of others, in which their inputs and outputs
    lie in some `orders`. Without `threads` nothing changes where no matrix instructions multiply. The order of `kept`
    tensors stays: they pass between contractions without storage.
    """
    programs = reorder(programs, orders) if orders else programs
    multiplied = _has_matrix_instructions(programs.types.values(), target, math)
    products = tuple(_products(programs, target, math)) if multiplied else ()
    if not products and threads and _moves_neighbours(target):
        found = _between_products(_for_windows(programs, frozenset(orders or ())), target)
        if found is not programs:
            return found
    return _for_accesses(programs, products, kept) if products or threads else programs


def _for_accesses(programs: Programs, products: Collection[Place], kept: frozenset[str]) -> Programs:
    """Return programs whose tensors lie as their statements move them with fewest instructions.

    Matrix instructions compute `products`. Without these nothing changes where the caller's tensors lie as the graph
    has them.
    """
    turned = dict(transposed_outputs(programs, find_aliases(programs)))
    programs = _with_orders(_with_orders(programs, turned), dict(_single_elements_first(programs, products)))
    aliases = find_aliases(programs)
    fixed = fixed_tensors(programs, aliases) | kept
    views = _views(aliases, programs, {}, fixed)
    seen = {root_tensor(t, aliases) for t, order in views if moves_elements(programs.types[t].shape, order)}
    if not products and not turned and seen.isdisjoint(programs.graph.inputs):
        return programs
    lines = _lines(programs, aliases, products)
    factors = [access.tensor for place in products for access in lines[place].accesses[:-1]]
    costs = InstructionCosts(paddable_types(programs.types, fixed) if factors else programs.types)
    every = components(lines.values(), programs.types, fixed)
    parts = every if products else (part.with_rows() for part in every)  # a softmax is one kernel where rows lie so
    orders = _choose_orders(tuple(evolve(part, second=True) for part in parts), costs)
    ordered = _with_views(_order_rows(programs, lines, costs, orders), aliases, orders, fixed)
    multiplied, padded = {place: lines[place] for place in products}, pad_rows(ordered, factors)
    return order_constants(_order_products(padded, multiplied, costs, orders), products)


def _single_elements_first(programs: Programs, products: Collection[Place]) -> Iterator[tuple[str, Order]]:
    """Yield the inputs that are factors of products and whose last dims have one element, with these dims first.

    No element moves: the last index is then the one whose neighbours are neighbours in memory.
    """
    factors = {t for unit in programs.units for t in unit.reads if unit.name in {name for name, _ in products}}
    graph = programs.graph
    for tensor in factors.intersection(graph.inputs) - programs.slices.keys() - graph.interface.replaced.keys():
        shape = programs.types[tensor].shape
        if shape and shape[-1] == 1 < programs.types[tensor].size:
            yield tensor, tuple(sorted(range(len(shape)), key=lambda d: shape[d] > 1))


def _for_windows(programs: Programs, given: frozenset[str]) -> Programs:
    """Return programs whose tensors lie as threads want them, where windows are read, or tensors are `given` in an
    order: the enclosing programs then contain the windows.
    """
    fixed = fixed_tensors(programs, find_aliases(programs)) | input_independent_tensors(programs)
    plain, runs = _in_parallel(programs, fixed, (), given), tuple(find_runs(programs, fixed))
    while runs:
        turned = _in_parallel(rotate_runs(programs, runs), fixed, runs, given)
        if len(turned.well) == len(runs):
            return min(plain, turned, key=lambda each: each.cost()).programs
        runs = turned.well
    return plain.programs


@frozen
class _Ordered:
    """Programs with their layouts, the instructions that they take, and the runs that lie well in them."""

    programs: Programs
    cost: Callable[[], float]
    well: tuple[Run, ...]


def _in_parallel(programs: Programs, fixed: frozenset[str], runs: Sequence[Run], given: frozenset[str]) -> _Ordered:
    """Return programs with dims innermost that statements are parallel in."""
    aliases, costs = find_aliases(programs), InstructionCosts(programs.types)
    lines = tuple(_lines(programs, aliases, ()).values())
    some = given or any(access.tensor not in fixed for line in lines for access in windows(line))
    every = components(lines, programs.types, fixed) if some else ()
    parts = tuple(part for part in every if part.has_windows or part.touches(given))
    separate = shared_dims(lines, programs.graph.constants) if parts else frozenset()
    orders = _choose_orders(tuple(part.in_parallel(separate) for part in parts), costs)
    touching = touching_lines(lines)
    well = tuple(run for run in runs if run.lies_well(touching, costs, orders))
    if orders:
        programs = _with_views(programs, aliases, orders, fixed)
    return _Ordered(programs, lambda: sum(costs.of(line, orders) for line in lines), well)


def _between_products(programs: Programs, target: Target) -> Programs:
    """Return programs whose tensors between products of constants lie as threads multiply them fastest."""
    statements = {(unit.name, n): s for unit in programs.units for n, s in enumerate(unit.statements)}
    products = tuple(number_products(programs))
    if not any(is_large(statements[place], target) for place in products):
        return programs
    aliases, known = find_aliases(programs), input_independent_tensors(programs)
    fixed = fixed_tensors(programs, aliases) | known | programs.orders.keys()
    given = known | set(programs.graph.constants)
    every = components(_lines(programs, aliases, products).values(), programs.types, fixed)
    parts = tuple(evolve(part, outermost=True) for part in every if is_between(part, given, target))
    costs = NumberCosts(programs.types, costs=target.costs)
    orders = _choose_orders(parts, costs, lambda part: worth(part, target.costs))
    return _with_views(programs, aliases, orders, fixed) if orders else programs


def _with_views(programs: Programs, aliases: Aliases, orders: Mapping[str, Order], fixed: frozenset[str]) -> Programs:
    """Return programs whose tensors lie in some orders, and whose views follow the tensors that they show."""
    return _with_orders(programs, {**orders, **dict(_views(aliases, programs, orders, fixed))})


def _with_orders(programs: Programs, orders: Mapping[str, Order]) -> Programs:
    return reorder(programs, orders) if orders else programs


def _lines(programs: Programs, aliases: Aliases, products: Collection[Place]) -> dict[Place, StatementAccesses]:
    """Return the accesses of the statements outside of loops."""
    return {
        (unit.name, n): line
        for unit in programs.units
        if unit.repeat is None
        for n, line in enumerate(lines_of(unit, aliases, {n for name, n in products if name == unit.name}))
    }


def orders_dims(types: Iterable[TensorType], target: Target, math: str) -> bool:
    """Return whether dims may change their order."""
    return _moves_neighbours(target) or _has_matrix_instructions(types, target, math)


def _moves_neighbours(target: Target) -> bool:
    """Return whether orders pay without matrix instructions: lanes of a warp move neighbours together."""
    return target.lockstep and not target.on_host


def _has_matrix_instructions(types: Iterable[TensorType], target: Target, math: str) -> bool:
    """Return whether matrix instructions of a target multiply one of the types."""
    kinds = {type_.dtype.value for type_ in types}
    return bool(target.atoms) and (
        bool(math) or any(MMA_INSTRUCTIONS[name].format in kinds for name, _ in target.atoms)
    )


def _products(programs: Programs, target: Target, math: str) -> Iterator[Place]:
    """Yield the contractions that matrix instructions may compute."""
    builder, known = GroupBuilder(Views(programs, {}), Policy(math=math)), dict[Hashable, bool]()
    for unit in programs.units:
        sums = [n for n, s in enumerate(unit.statements) if s.combine == "sum" and len(s.reads) > 1]
        if len(sums) != 1 or not builder.is_used(unit.name):
            continue
        form = builder.single(unit.name).form
        if (key := form_key(form)) not in known:
            known[key] = is_mma_computable(form, target)
        if known[key]:
            yield unit.name, sums[0]


def _nothing(part: Component) -> float:
    return 0.0


def _choose_orders(
    parts: Sequence[Component], costs: InstructionCosts, saves: Callable[[Component], float] = _nothing
) -> dict[str, Order]:
    """Return the orders of all components. Each is chosen given those of the others, until none changes; another order
    has to save `saves` instructions.
    """
    found: dict[str, Order] = {}
    for _ in range(MAX_ROUNDS):
        before = dict(found)
        for part in parts:
            for tensor in part.tensors & found.keys():
                del found[tensor]
            found.update(_best(part, costs, found, saves(part)))
        if found == before:
            break
    return found


def _best(part: Component, costs: InstructionCosts, others: dict[str, Order], saving: float) -> dict[str, Order]:
    """Return the orders of a component with fewest instructions, of equal ones those that leave most dims in place;
    none where the given ones are best.
    """
    least = max(saving, MIN_SAVING * part.least(costs))
    every = ((part.saving(costs, others, orders), orders) for orders in part.choices(costs.types))
    better = [(saved, orders) for saved, orders in every if saved > least]
    return min(better, key=lambda each: (-each[0], _moved_dims(each[1])))[1] if better else {}


def _moved_dims(orders: Mapping[str, Order]) -> int:
    """Return the number of dims that are not in place."""
    return sum(n != d for order in orders.values() for n, d in enumerate(order))


def _views(
    aliases: Aliases, programs: Programs, orders: Mapping[str, Order], fixed: frozenset[str]
) -> Iterator[tuple[str, Order]]:
    """Yield the views whose dims lie in another order than in the memory that they show.

    Where strides do not describe a view of the root, they may describe it as a view of a view, which a kernel writes.
    """
    found = dict(orders)
    for tensor in aliases.shown:
        dims = dims_of(programs.types[tensor])
        for source, indices in reversed(list(aliases.chain(tensor, [as_index(d) for d in dims]))):
            address = linearise(indices, steps(programs.types[source], found.get(source)))
            if is_affine(address):
                order = tuple(dims.index(d) for d in by_step(dims, address))
                if tensor not in fixed and order != tuple(range(len(dims))):
                    found[tensor] = order
                    yield tensor, order
                break


def _order_rows(
    programs: Programs, lines: Mapping[Place, StatementAccesses], costs: InstructionCosts, orders: Mapping[str, Order]
) -> Programs:
    """Return programs whose other reductions run along memory: the reduced axis that moves their largest operand least
    comes last, so that threads load its neighbours at once.

        sum over c, h, w of x[n, h, w, 8*g + c]     ->     sum over h, w, c of x[n, h, w, 8*g + c]
    """

    def reorder_axes(name: str, n: int, statement: Statement) -> Statement:
        line = lines.get((name, n))
        if line is None or line.product or statement.combine not in VALUE_COMBINERS or statement.along is not None:
            return statement
        largest = max(line.accesses[:-1], key=lambda a: a.count, default=None)
        if largest is None:
            return statement
        return evolve(statement, reduce=by_step(statement.reduce, costs.address(largest, orders)))

    def unit(old: Unit) -> Unit:
        return evolve(old, statements=tuple(reorder_axes(old.name, n, s) for n, s in enumerate(old.statements)))

    return evolve(programs, units=tuple(map(unit, programs.units)))


def _order_products(
    programs: Programs, lines: Mapping[Place, StatementAccesses], costs: InstructionCosts, orders: Mapping[str, Order]
) -> Programs:
    """Return programs whose products are added up in the order of the dims of their largest factor, a constant only
    where all are. Rows and columns, the axes that one factor alone has, are numbered in the order of that factor's
    dims, or of the result's where the factor lies along a reduced axis: any rows of it load as well.
    """
    constants = programs.graph.constants

    def unit(old: Unit) -> Unit:
        statements = list(old.statements)
        for n, statement in enumerate(statements):
            if line := lines.get((old.name, n)):
                *factors, target = line.accesses
                largest = max(factors, key=lambda a: (a.tensor not in constants, a.count))
                axes = statement.axes
                for access in factors:
                    address = costs.address(access, orders)
                    (nearest,) = by_step((*access.own, *statement.reduce), address)[-1:] or (None,)
                    guide = costs.address(target, orders) if nearest in statement.reduce else address
                    axes = _permute_axes(axes, by_step(access.own, guide))
                reduce = by_step(statement.reduce, costs.address(largest, orders))
                statements[n] = evolve(statement, axes=axes, reduce=reduce)
        return evolve(old, statements=tuple(statements))

    return evolve(programs, units=tuple(map(unit, programs.units)))


def _permute_axes(axes: Sequence[Var], some: Sequence[Var]) -> tuple[Var, ...]:
    """Return axes with some of them in another order, in the places that these have."""
    following = iter(some)
    return tuple(next(following) if axis in some else axis for axis in axes)
