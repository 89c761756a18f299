"""Prints prefetches: kernels ask for bytes of later launches.

    kernel(p0, p1) { begin(); ... }  ->  kernel(p0, p1, p2) { prefetch(p2 + 4096, 512); begin(); ... }

They do so before they wait for earlier launches. A bulk prefetch moves a unit into the L2 cache. Threads of the last
blocks take units in turn: where a launch has more blocks than fit at once, memory is idle only towards its end.
"""

from __future__ import annotations

import hashlib

from attrs import evolve

from ...ir import (
    PREFETCH_UNIT,
    PREFETCHED_KEY,
    WAITING_SUFFIX,
    Argument,
    CompiledGraph,
    KernelFunction,
    Prefetch,
    Step,
)
from .dialect import DIALECTS

#: Blocks of a launch that issue prefetches, the last ones.
PREFETCHING_BLOCKS = 264
_HELPER = f"""static __device__ __forceinline__ void cuts_prefetch(const void* p, unsigned first, unsigned count) {{
#if __CUDA_ARCH__ >= 900
  const unsigned blocks = min(gridDim.x, {PREFETCHING_BLOCKS}u), own = blockIdx.x + blocks - gridDim.x;
  const unsigned long long begin = ((unsigned long long)p & ~15ull) + (unsigned long long)first * {PREFETCH_UNIT}u;
  if (own < blocks)
    for (unsigned n = own + threadIdx.x * blocks; n < count; n += blocks * blockDim.x)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], {PREFETCH_UNIT};"
                   :: "l"(begin + n * {PREFETCH_UNIT}ull) : "memory");
#endif
}}
"""


def print_prefetches(compiled: CompiledGraph) -> CompiledGraph:
    """Return a graph whose kernels have the prefetches of their launches."""
    if not compiled.prefetches:
        return compiled
    made: dict[tuple[int, tuple[tuple[int, int], ...]], tuple[int, KernelFunction]] = {}
    steps = list[Step]()
    for number, step in enumerate(compiled.steps):
        wanted, kernel = compiled.prefetches.get(number, ()), compiled.kernels[step.kernel]
        key = step.kernel, tuple((each.offset, each.nbytes) for each in wanted)
        if key not in made:
            made[key] = len(made), _with_prefetches(kernel, compiled, wanted)
        place, printed = made[key]
        more = tuple(each.tensor for each in wanted) if printed is not kernel else ()
        steps.append(Step(place, (*step.tensors, *more)))
    return evolve(compiled, kernels=tuple(k for _, k in made.values()), steps=tuple(steps), prefetches={})


def _with_prefetches(kernel: KernelFunction, compiled: CompiledGraph, wanted: tuple[Prefetch, ...]) -> KernelFunction:
    """Return a kernel with prefetches, the kernel itself where it cannot have any."""
    begin = DIALECTS[kernel.dialect].begin if kernel.dialect in DIALECTS else ""
    head = f") {{\n  {begin}();\n"
    if not wanted or not begin or kernel.source.count(head) != 1:
        return kernel
    arguments, names, calls = [*kernel.arguments], "", ""
    for number, each in enumerate(wanted, start=len(arguments)):
        arguments.append(Argument(f"{PREFETCHED_KEY} {number}", compiled.graph.types[each.tensor].dtype, False))
        names += f", const void* __restrict__ p{number}"
        calls += f"  cuts_prefetch(p{number}, {each.offset // PREFETCH_UNIT}u, {each.nbytes // PREFETCH_UNIT}u);\n"
    source = kernel.source.replace(head, f"{names}) {{\n{calls}  {begin}();\n")
    place = source.index('extern "C"')
    source = source[:place] + _HELPER + source[place:]
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    waits = WAITING_SUFFIX if kernel.name.endswith(WAITING_SUFFIX) else ""
    name = f"{kernel.name.removesuffix(waits).rpartition('_')[0]}_{digest}{waits}"
    info = {**kernel.info, PREFETCHED_KEY: len(wanted)}
    return evolve(kernel, name=name, source=source.replace(kernel.name, name), arguments=tuple(arguments), info=info)
