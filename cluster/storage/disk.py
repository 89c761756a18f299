"""Concurrent reads and writes of file ranges, by direct access if possible.

A range moves in pieces; each piece goes on to the device, or comes from it, while the disk transfers others.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...backends import Array
from ...ir import PlanError
from .layer_files import PAGE, storage_error

#: Bytes of one request, and the number of concurrent requests.
PIECE_BYTES, MAX_REQUESTS = 8 << 20, 6

Moved = Callable[[int, int], None]


class Disk:
    """Pool of threads that move pieces.

    `direct` bypasses the page cache, with a fallback on each file system that refuses it.
    """

    def __init__(
        self,
        *,
        direct: bool = True,
        lanes: int = MAX_REQUESTS,
        prepare: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._allowed = direct and hasattr(os, "O_DIRECT")
        self._refusing: set[int] = set()  # file systems without direct access
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="cuts-disk", initializer=prepare)
        self._files: dict[tuple[Path, bool], int] = {}
        self._stale: list[int] = []  # files that direct access was refused for
        self._lock = threading.Lock()
        self.read_bytes = 0
        self.written_bytes = 0
        self.busy = 0.0  #: seconds in which pieces were requested or in transfer
        self._clock, self._outstanding, self._since = clock, 0, 0.0

    def close(self) -> None:
        """Wait for running requests and close all files."""
        self._pool.shutdown(wait=True)
        for file in (*self._files.values(), *self._stale):
            os.close(file)
        self._files.clear()

    @property
    def direct(self) -> bool:
        """Return whether no file system has refused direct access."""
        return self._allowed and not self._refusing

    def _is_direct(self, path: Path) -> bool:
        return self._allowed and (not self._refusing or os.stat(path).st_dev not in self._refusing)

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Run something in the pool."""
        return self._pool.submit(work)

    def file(self, path: Path, *, write: bool) -> int:
        """Return an open file, direct where that is possible."""
        with self._lock:
            key = (path, write)
            if key not in self._files:
                self._files[key] = self._open(path, os.O_RDWR if write else os.O_RDONLY)
            return self._files[key]

    def _open(self, path: Path, flags: int) -> int:
        try:
            if self._is_direct(path):
                try:
                    return os.open(path, flags | os.O_DIRECT)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    self._refusing.add(os.stat(path).st_dev)
            return os.open(path, flags)
        except OSError as error:
            raise storage_error(error, path, 0) from error

    def read(self, path: Path, start: int, host: Array, nbytes: int, then: Moved | None = None) -> list[Future[None]]:
        """Fill the first `nbytes` of `host` from a file's range.

        `then(begin, end)` runs after each piece. `host` is page-aligned and has room for whole pages, as direct reads
        bring these.
        """

        def piece(begin: int, end: int) -> None:
            got = begin
            while got < end:
                try:
                    count = os.preadv(
                        self.file(path, write=False), [host.data[got : -(-end // PAGE) * PAGE]], start + got
                    )
                except OSError as error:
                    if self._falls_back(error, path):
                        continue
                    raise storage_error(error, path, end - got) from error
                if count == 0:
                    raise PlanError(
                        f"{path}: ends at byte {start + got}, expected {start + nbytes}",
                        hint="the file was cut short: restore it",
                    )
                got += count
            with self._lock:
                self.read_bytes += end - begin
            if then is not None:
                then(begin, end)

        return self._pieces(piece, nbytes)

    def write(
        self, path: Path, start: int, host: Array, nbytes: int, before: Moved | None = None
    ) -> list[Future[None]]:
        """Write the first `nbytes` of `host` to a file's range.

        `before(begin, end)` runs before each piece is written.
        """

        def piece(begin: int, end: int) -> None:
            if before is not None:
                before(begin, end)
            sent = begin
            while sent < end:
                try:
                    sent += self._pwrite(self.file(path, write=True), path, host.data[sent:end], start + sent)
                except OSError as error:
                    if self._falls_back(error, path):
                        continue
                    raise storage_error(error, path, end - sent) from error
            with self._lock:
                self.written_bytes += end - begin

        return self._pieces(piece, nbytes)

    def copy(self, work: Moved, nbytes: int, *, writes: bool = False) -> list[Future[None]]:
        """Copy a range in memory, piece by piece, by `work(begin, end)`."""

        def piece(begin: int, end: int) -> None:
            work(begin, end)
            with self._lock:
                self.read_bytes += 0 if writes else end - begin
                self.written_bytes += end - begin if writes else 0

        return self._pieces(piece, nbytes)

    def _pieces(self, work: Callable[[int, int], None], nbytes: int) -> list[Future[None]]:
        """Move a range in the pool, piece by piece; count the seconds with outstanding pieces."""

        def move_piece(begin: int, end: int) -> None:
            try:
                work(begin, end)
            finally:
                with self._lock:
                    self._outstanding -= 1
                    if not self._outstanding:
                        self.busy += self._clock() - self._since

        begins = range(0, nbytes, PIECE_BYTES)
        with self._lock:
            if not self._outstanding:
                self._since = self._clock()
            self._outstanding += len(begins)
        return [self._pool.submit(move_piece, begin, min(begin + PIECE_BYTES, nbytes)) for begin in begins]

    def _falls_back(self, error: OSError, path: Path) -> bool:
        """Fall back to the page cache where direct access was refused; return whether to try again."""
        with self._lock:
            if error.errno not in (errno.EINVAL, errno.EFAULT) or not self._is_direct(path):
                return False
            self._refusing.add(os.stat(path).st_dev)
            for key in [key for key in self._files if not self._is_direct(key[0])]:
                self._stale.append(self._files.pop(key))  # other threads may still use it
            return True

    def _pwrite(self, file: int, path: Path, data: memoryview, start: int) -> int:
        """Write some bytes; an incomplete page at the end goes through the page cache."""
        if not self._is_direct(path) or (start % PAGE == 0 and len(data) % PAGE == 0):
            return os.pwritev(file, [data], start)
        whole = len(data) // PAGE * PAGE
        if start % PAGE == 0 and whole:
            return os.pwritev(file, [data[:whole]], start)
        other = os.open(path, os.O_RDWR)
        try:
            return os.pwritev(other, [data], start)
        finally:
            os.close(other)

    def sync(self) -> None:
        """Wait until everything written is on the disk itself."""
        for (path, write), file in list(self._files.items()):
            if write:
                try:
                    os.fsync(file)
                except OSError as error:
                    raise storage_error(error, path, 0) from error


def finish(futures: list[Future[None]]) -> None:
    """Wait for pieces; raise the error of one."""
    for future in futures:
        future.result()
