"""Runs of many architectures, each in a process with a time limit."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

from .table import Architecture

#: Characters of a message in a record.
MAX_MESSAGE = 600
#: Key of the reason for which an architecture does not run.
SKIPPED_KEY = "skipped"


def missing_library(library: str) -> str:
    """Return why a library cannot be used, or an empty text."""
    if importlib.util.find_spec(library) is None:
        return f"{library} is not installed"
    for name in ("torchvision", library):  # the others import it late, where it is installed
        if importlib.util.find_spec(name) is not None:
            try:
                importlib.import_module(name)
            except (ImportError, RuntimeError) as error:  # torchvision raises the latter where PyTorch is another one
                return f"{name} cannot be imported: {error}"
    return ""


def run_all(
    architectures: Iterable[Architecture], tasks: Sequence[str], limit: float, capture_only: bool
) -> Iterator[dict[str, Any]]:
    """Yield a record, or the reason for none, for each architecture."""
    for each in architectures:
        head = {"name": each.name, "library": each.library, "versions": _versions(each.library)}
        yield {**head, **_run_in_process(each, tasks, limit, capture_only)}


def _versions(library: str) -> dict[str, str]:
    """Return the versions of PyTorch and of a library, where these are installed."""
    with suppress(PackageNotFoundError):
        return {name: version(name) for name in ("torch", library)}
    return {}


def _run_in_process(
    architecture: Architecture, tasks: Sequence[str], limit: float, capture_only: bool
) -> dict[str, Any]:
    """Return the results of the tasks; those that end within the limit are kept."""
    context = multiprocessing.get_context("spawn")  # a fork would stop where threads of PyTorch held locks
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, architecture, tasks, capture_only))
    start = perf_counter()
    process.start()
    sender.close()
    found: dict[str, Any] = {}
    while receiver.poll(max(0.0, limit - (perf_counter() - start))):
        try:
            task, record = receiver.recv()
        except EOFError:
            break
        if task == SKIPPED_KEY:
            process.join()
            return {SKIPPED_KEY: record}
        found[task] = record
    ended = len(found) == len(tasks) or _has_ended(process)
    if process.is_alive():
        process.kill()
    process.join()
    reason = f"process ended with {process.exitcode}" if ended else f"more than {limit:.0f} s"
    return {task: found.get(task, {"error": reason}) for task in tasks} | {
        "total_seconds": round(perf_counter() - start, 1)
    }


def _has_ended(process: Any) -> bool:
    """Return whether a process ends within half a second."""
    process.join(0.5)
    return not process.is_alive()


def _work(sender: Connection, architecture: Architecture, tasks: Sequence[str], capture_only: bool) -> None:
    """Send a record for each task, or the reason for which there is none."""
    warnings.simplefilter("ignore")
    if reason := missing_library(architecture.library):
        sender.send((SKIPPED_KEY, reason))
        return
    from .checking import check

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing:
        os.environ["XDG_CACHE_HOME"] = folder  # seconds are those of a first compilation
        os.dup2(nothing.fileno(), 1)
        for task in tasks:
            try:
                record = check(architecture, task, capture_only)
            except Exception as error:  # of any kind: the record is the report
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
                record = {"error": text, "at": f"{where.filename}:{where.lineno}"}
            sender.send((task, record))
    sender.close()
