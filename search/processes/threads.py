"""Single-threaded linear algebra, for processes beside busy workers.

The threads of a linear algebra library spin until all have had a turn. Beside workers that takes as long as to get a
core: a Gaussian process of forty rows is fitted and queried in 3 ms by one thread, in 160 ms by two on two busy cores.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries with threads among those that are loaded at the first call."""
    return ThreadpoolController()


def keep_one_thread() -> None:
    """Limit linear algebra libraries to one thread each from now on."""
    _libraries().limit(limits=1)


def library_threads() -> int:
    """Return the number of OpenBLAS's further threads.

    OpenBLAS ends its threads before a fork and starts new ones afterwards.
    """
    found = _libraries().info()
    return sum(each["num_threads"] - 1 for each in found if each["internal_api"] == "openblas")


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which linear algebra libraries have one thread each."""
    block: AbstractContextManager[object] = _libraries().limit(limits=1)
    return block
