"""Prefetches: launches bring constants of later launches into the L2 cache.

A launch leaves memory idle while it begins, ends and waits for other things than data. Where the next launches read
tensors once that no launch writes, such as the weights of products of one row, a launch asks for as many of their bytes
as memory moves in its idle time, and the launch that reads them finds these in the cache:

    attention of few rows: 5 us, 1 us of them for its data  ->  prefetches the first 16 MB of the product after it

Nothing waits for a prefetch, and it changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from attrs import define, frozen

from ...ir import PREFETCH_UNIT, Expr, FusedGroup, Prefetch, Target, expr_variables, indirects, reads
from ..fusion import Group, Views
from ..schedule import Candidate

#: Least bytes of a tensor to prefetch.
MIN_PREFETCHED_BYTES = 1 << 20


@define
class Stream:
    """Tensor that a launch reads whole, with its prefetched bytes."""

    tensor: str
    nbytes: int
    prefetched: int = 0


@frozen
class _Launch:
    """Launch with its streams, and the bytes that memory could move in its idle time."""

    streams: tuple[Stream, ...]
    idle_bytes: float


def plan_prefetches(
    launched: Sequence[Sequence[Group]],
    candidate: Callable[[Group], Candidate],
    views: Views,
    target: Target,
) -> Mapping[int, tuple[Prefetch, ...]]:
    """Return the prefetches of launches, by number."""
    if not target.prefetched_bytes or any(group.repeat is not None for groups in launched for group in groups):
        return {}
    written = {views.storage(tensor).buffer for groups in launched for group in groups for tensor in group.outputs}
    planned = [
        _Launch(tuple(_streams(groups, views, written)), _idle_bytes([candidate(g) for g in groups], target))
        for groups in launched
    ]
    found = {n: tuple(_prefetches(planned, n, target)) for n in range(len(planned))}
    return {n: each for n, each in found.items() if each}


def _idle_bytes(candidates: Sequence[Candidate], target: Target) -> float:
    """Return the bytes that memory could move while a launch does not need it."""
    seconds = max(c.score for c in candidates)
    return max(0.0, seconds - sum(c.features["time_dram"] for c in candidates)) * target.BW_global


def _prefetches(launches: Sequence[_Launch], number: int, target: Target) -> Iterator[Prefetch]:
    """Yield the prefetches of a launch: of the first later streams that are not prefetched, in equal parts."""
    later = launches[number + 1 :]
    held = sum(s.prefetched for launch in later for s in launch.streams)
    left = int(min(launches[number].idle_bytes, target.prefetched_bytes - held))
    for launch in later:
        wanted = [s for s in launch.streams if s.prefetched < s.nbytes]
        whole = sum(s.nbytes - s.prefetched for s in wanted)
        share = min(1.0, left / whole) if whole else 0.0
        for stream in wanted:
            nbytes = int((stream.nbytes - stream.prefetched) * share) // PREFETCH_UNIT * PREFETCH_UNIT
            if nbytes > 0:
                yield Prefetch(stream.tensor, stream.prefetched, nbytes)
                stream.prefetched = stream.nbytes if share == 1.0 else stream.prefetched + nbytes
                left -= nbytes
        if wanted and share < 1.0:
            return


def _streams(groups: Sequence[Group], views: Views, written: set[str]) -> Iterator[Stream]:
    """Yield the large tensors of the caller that a launch reads whole, where no launch writes."""
    found = set[str]()
    for group in groups:
        for name in group.form.inputs:
            tensor = group.tensors[name]
            type_, storage = group.form.tensors[name], views.storage(tensor)
            reach = 1 + sum((n - 1) * step for n, step in zip(type_.shape, storage.strides, strict=True))
            large = type_.nbytes >= MIN_PREFETCHED_BYTES and reach == type_.size
            if large and storage.buffer not in (written | found) and _is_read_whole(group.form, name):
                found.add(storage.buffer)
                yield Stream(tensor, type_.nbytes)


def _is_read_whole(form: FusedGroup, tensor: str) -> bool:
    """Return whether the places of a tensor's reads are all of it."""
    bodies: list[Expr] = [r.body for s in form.segments for r in s.reductions]
    bodies += [o.body for s in form.segments for o in s.outputs]
    found = [read for body in bodies for read in reads(body) if read.tensor == tensor]
    if not found or any(indirects(index) for read in found for index in read.indices):
        return False
    return all(prod(v.extent for v in {*expr_variables(read)}) >= form.tensors[tensor].size for read in found)
