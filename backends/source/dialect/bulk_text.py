"""Text of tensor maps, mbarriers, bulk copies and clusters in CUDA C++.

OpenCL C has none of them: there all threads copy a box element by element, and meet where they would wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....ir import CORNER_BITS, MAX_MAP_DIMS

#: Type of a tensor map's parameter, and the words that it has.
MAP_TYPE, MAP_WORDS = "cuts_map", 16
#: Helpers that a kernel of clusters calls first, and before its first store to another block.
CLUSTER_BEGIN, CLUSTER_WAIT = "cuts_cluster_begin", "cuts_cluster_wait"
#: Rounds after which a wait ends the kernel, in builds with `BOUNDED_WAITS`.
_BOUNDED_ROUNDS = 1 << 22


def bulk_helpers(qualifier: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ by name."""
    yield MAP_TYPE, f"struct __align__(64) {MAP_TYPE} {{ unsigned long long words[{MAP_WORDS}]; }};"
    pointer = "unsigned long long* b"
    at = '"r"((unsigned)__cvta_generic_to_shared(b))'
    expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    yield (
        "cuts_mbarrier_init",
        f"{qualifier} void cuts_mbarrier_init({pointer}, int arrivals) "
        f'{{ asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: {at}, "r"(arrivals) : "memory"); }}',
    )
    yield (
        "cuts_mbarrier_expect",
        f"{qualifier} void cuts_mbarrier_expect({pointer}, int nbytes) "
        f'{{ asm volatile("{expect}" :: {at}, "r"(nbytes) : "memory"); }}',
    )
    yield (
        "cuts_mbarrier_arrive",
        f"{qualifier} void cuts_mbarrier_arrive({pointer}) "
        f'{{ asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: {at} : "memory"); }}',
    )
    yield (
        "cuts_mbarrier_wait",
        f"{qualifier} void cuts_mbarrier_wait({pointer}, int parity) {{\n  unsigned done;\n"
        f"#ifdef BOUNDED_WAITS\n  int rounds = 0;\n#endif\n  do {{\n"
        '    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; '
        f'selp.b32 %0, 1, 0, p; }}" : "=r"(done) : {at}, "r"(parity) : "memory");\n'
        f"#ifdef BOUNDED_WAITS\n    if (++rounds > {_BOUNDED_ROUNDS}) __trap();\n#endif\n  }} while (!done);\n}}",
    )
    for rank in range(1, MAX_MAP_DIMS + 1):
        places = ", ".join(f"%{n + 3}" for n in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
            f"[%0], [%1, {{{places}}}], [%2];"
        )
        coordinates = ", ".join(f"int c{n}" for n in range(rank))
        values = ", ".join(f'"r"(c{n})' for n in range(rank))
        yield (
            f"cuts_bulk_copy{rank}",
            f"{qualifier} void cuts_bulk_copy{rank}(void* d, const {MAP_TYPE}& map, {pointer}, {coordinates}) "
            f'{{ asm volatile("{text}" :: "r"((unsigned)__cvta_generic_to_shared(d)), "l"(&map), {at}, {values} '
            ': "memory"); }',
        )
    for rank in CORNER_BITS:
        dims, offsets = rank + 2, [f"o{n}" for n in range(rank)]
        numbers = ", ".join(f"%{n + 3}" for n in range(dims))
        moved = ", ".join(f"%{n + 3 + dims}" for n in range(rank))
        text = (
            f"cp.async.bulk.tensor.{dims}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            f"[%0], [%1, {{{numbers}}}], [%2], {{{moved}}};"
        )
        coordinates = ", ".join(f"int c{n}" for n in range(dims))
        values = ", ".join((*(f'"r"(c{n})' for n in range(dims)), *(f'"h"((unsigned short){o})' for o in offsets)))
        yield (
            f"cuts_walking_copy{rank}",
            f"{qualifier} void cuts_walking_copy{rank}(void* d, const {MAP_TYPE}& map, {pointer}, {coordinates}, "
            f"{', '.join(f'int {o}' for o in offsets)}) "
            f'{{ asm volatile("{text}" :: "r"((unsigned)__cvta_generic_to_shared(d)), "l"(&map), {at}, {values} '
            ': "memory"); }',
        )


#: Statement that makes initialised mbarriers visible to bulk copies.
MBARRIER_FENCE = 'asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");'
#: Statement by which a warpgroup gives registers back, or takes further ones.
REGISTER_LIMIT = 'asm volatile("setmaxnreg.{way}.sync.aligned.u32 {count};");'


def cluster_helpers(qualifier: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ by name.

    Stores to other blocks complete transactions of an mbarrier there: a barrier of the cluster that released them would
    wait for all memory operations of its blocks, and empty their L1.
    """
    begin = "fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed.aligned;"
    for name, text in ((CLUSTER_BEGIN, begin), (CLUSTER_WAIT, "barrier.cluster.wait.acquire.aligned;")):
        yield name, f'{qualifier} void {name}() {{ asm volatile("{text}" ::: "memory"); }}'
    for nbytes, kind, constraint in ((4, "unsigned", "r"), (8, "unsigned long long", "l")):
        yield (
            f"cuts_to_peer{nbytes}",
            f"template <typename T> {qualifier} void cuts_to_peer{nbytes}(T* d, T v, unsigned long long* b, int block) "
            "{\n"
            f"  const {kind} w = *reinterpret_cast<const {kind}*>(&v);\n"
            '  asm volatile("{ .reg .u32 a, c; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 c, %1, %2; '
            f'st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b{8 * nbytes} [a], %3, [c]; }}" '
            ':: "r"((unsigned)__cvta_generic_to_shared(d)), "r"((unsigned)__cvta_generic_to_shared(b)), "r"(block), '
            f'"{constraint}"(w) : "memory");\n}}',
        )
