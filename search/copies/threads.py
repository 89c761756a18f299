"""Linear algebra by one thread, where workers have all cores.

The threads of a library of linear algebra spin until all of them have had their turn. Beside workers that is as long as
it takes to get a core: a process of forty rows is fitted and asked in 3 ms by one thread, in 160 ms by two on two busy
cores.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries that have threads, of those that are loaded when this is first asked."""
    return ThreadpoolController()


def keep_one_thread() -> None:
    """Let libraries of linear algebra have one thread each from now on."""
    _libraries().limit(limits=1)


def library_threads() -> int:
    """Return how many threads that library of linear algebra has besides this one which ends its own before a process
    is copied, and makes new ones behind it (OpenBLAS).
    """
    found = _libraries().info()
    return sum(each["num_threads"] - 1 for each in found if each["internal_api"] == "openblas")


def one_thread() -> AbstractContextManager[object]:
    """Return a block in which libraries of linear algebra have one thread each."""
    block: AbstractContextManager[object] = _libraries().limit(limits=1)
    return block
