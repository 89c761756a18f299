"""Random plans of kernels without a text.

Launches change bytes one by one. Tensors lie anywhere in few buffers, and loops move them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.compiled import Argument, KernelFunction, RepeatedSteps, Step, Storage
from cuts.ir.types import DType, TensorType
from cuts.runtime.memory import place_buffers
from cuts.runtime.plan import Plan, check_plan, extent_bytes, lifetimes_of
from hypothesis import strategies as st

TARGET = find_target("opencl")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan of up to 10 steps and two loops.

    It has up to 5 buffers. Its buffers share memory as the order of steps allows.
    """
    count = draw(st.integers(1, 10))
    loops = draw(_loops(count))
    types: dict[str, TensorType] = {}
    storages: dict[str, Storage] = {}
    kernels, steps = [], []
    for number in range(count):
        turns = next((loop.count for loop in loops if loop.first <= number < loop.last), 1)
        arguments, tensors = [], []
        for argument in range(draw(st.integers(1, 3))):
            name = f"t{number}.{argument}"
            types[name], storages[name] = draw(_tensor(turns))
            arguments.append(Argument(name, types[name].dtype, draw(st.booleans())))
            tensors.append(name)
        kernels.append(KernelFunction(f"k{number}", "opencl", "", (1, 1, 1), (1, 1, 1), tuple(arguments)))
        steps.append(Step(number, tuple(tensors)))
    names = sorted(types)
    inputs, outputs = ((draw(st.sampled_from(names)),) for _ in range(2))
    plan = Plan("drawn", TARGET, inputs, outputs, types, storages, {}, 0, {}, tuple(kernels),
                tuple(steps), binaries=(None,) * count, loops=loops)  # fmt: skip
    return share_buffers(plan)


@st.composite
def _loops(draw: st.DrawFn, count: int) -> tuple[RepeatedSteps, ...]:
    marks = sorted(draw(st.sets(st.integers(0, count), max_size=4)))
    return tuple(RepeatedSteps(*pair, draw(st.integers(1, 3))) for pair in zip(marks[::2], marks[1::2], strict=False))


@st.composite
def _tensor(draw: st.DrawFn, turns: int) -> tuple[TensorType, Storage]:
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0 if rank == 3 else 1, 3)) for _ in range(rank))
    strides = tuple(draw(st.integers(0, 8)) for _ in range(rank))
    by = draw(st.sampled_from((0, 0, 1, 4, -2)))
    moves = {
        "by": by,
        "iterations": turns,
        "period": draw(st.sampled_from((0, 0, 2))),
        "phase": draw(st.integers(0, 1)),
    }
    buffer, dtype = draw(st.sampled_from("abcde")), draw(st.sampled_from((DType.F32, DType.F16)))
    storage = Storage(buffer, draw(st.integers(0, 8)), strides, **(moves if turns > 1 and by else {}))
    return TensorType(dtype, shape), evolve(storage, offset=storage.offset - min(0, *storage.ends))


def share_buffers(plan: Plan) -> Plan:
    """Return a plan whose buffers share memory in step order."""
    sizes: dict[str, int] = {}
    for tensor, storage in plan.storages.items():
        key = storage.buffer
        sizes[key] = max(sizes.get(key, 0), extent_bytes(plan.types[tensor], storage))
    places, arena = place_buffers(sizes, lifetimes_of(plan, plan.inputs, plan.outputs, (), plan.storages))
    plan = evolve(plan, buffers=places, arena=arena)
    check_plan(plan)
    return plan


def bytes_of(plan: Plan, tensor: str, turn: int = 0) -> list[tuple[str, int]]:
    """Return the bytes of a tensor in the order of elements.

    Each is its buffer and its number there.
    """
    storage, type_ = plan.storages[tensor], plan.types[tensor]
    size, found = type_.dtype.size, []
    for place in product(*map(range, type_.shape)):
        first = storage.start(turn) + sum(i * stride for i, stride in zip(place, storage.strides, strict=True))
        found += [(storage.buffer, first * size + number) for number in range(size)]
    return found


def touched_bytes(plan: Plan, step: int, turn: int) -> list[tuple[bool, list[tuple[str, int]]]]:
    """Return the bytes of each argument, and whether it is written."""
    arguments = plan.kernels[plan.steps[step].kernel].arguments
    names = plan.steps[step].tensors
    return [(a.written, bytes_of(plan, t, turn)) for a, t in zip(arguments, names, strict=True)]


def outcome(plan: Plan, order: Sequence[int], begins: Mapping[str, int], known: Mapping[int, set[object]]) -> list[int]:
    """Return the output bytes of launches in an order.

    Buffers begin at given positions. Written bytes depend on all bytes that the launch reads, and it reads the bytes
    that it writes. `known` are the bytes that some launch before each, or the inputs, have written.
    """
    launches = list(plan.launches())
    memory: dict[int, int] = {}
    for tensor in plan.inputs:
        memory |= {begins[b] + n: hash((b, n)) for b, n in bytes_of(plan, tensor)}
    for number in order:
        each = touched_bytes(plan, *launches[number])
        read = [memory.get(begins[b] + n, 0) for _, places in each for b, n in places if (b, n) in known[number]]
        value = hash((number, tuple(read)))
        for place, (written, places) in enumerate(each):
            if written:
                memory |= {begins[b] + n: hash((value, place, k)) for k, (b, n) in enumerate(places)}
    end = known[len(launches)]
    return [memory.get(begins[b] + n, 0) for t in plan.outputs for b, n in bytes_of(plan, t) if (b, n) in end]


def known_bytes(plan: Plan) -> dict[int, set[object]]:
    """Return the bytes written before each launch and before the end.

    Launches run in the order of the plan.
    """
    known: set[object] = {place for tensor in plan.inputs for place in bytes_of(plan, tensor)}
    found: dict[int, set[object]] = {}
    for number, launch in enumerate(plan.launches()):
        found[number] = set(known)
        known |= {place for written, places in touched_bytes(plan, *launch) if written for place in places}
    found[plan.launch_count] = known
    return found
