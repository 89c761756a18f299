"""Text of thread block clusters in CUDA C++: barriers, stores to peers."""

from __future__ import annotations

from collections.abc import Iterator

#: Helpers that a kernel of clusters calls first, before its first store to another block, and around exchanges.
CLUSTER_BEGIN, CLUSTER_WAIT, CLUSTER_BARRIER = "cuts_cluster_begin", "cuts_cluster_wait", "cuts_cluster_barrier"


def cluster_helpers(qualifier: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ by name."""
    arrive, wait = "barrier.cluster.arrive.release.aligned;", "barrier.cluster.wait.acquire.aligned;"
    for name, text in ((CLUSTER_BEGIN, arrive), (CLUSTER_WAIT, wait), (CLUSTER_BARRIER, f"{arrive} {wait}")):
        yield name, f'{qualifier} void {name}() {{ asm volatile("{text}" ::: "memory"); }}'
    for nbytes, kind, constraint in ((4, "unsigned", "r"), (8, "unsigned long long", "l")):
        yield (
            f"cuts_to_peer{nbytes}",
            f"template <typename T> {qualifier} void cuts_to_peer{nbytes}(T* d, T v, int block) {{\n"
            f"  const {kind} w = *reinterpret_cast<const {kind}*>(&v);\n"
            '  asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %0, %1; '
            f'st.shared::cluster.b{8 * nbytes} [a], %2; }}" :: "r"((unsigned)__cvta_generic_to_shared(d)), "r"(block), '
            f'"{constraint}"(w) : "memory");\n}}',
        )
