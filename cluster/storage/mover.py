"""Moves of file ranges to and from device buffers, while kernels run."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from attrs import define, field, frozen

from ...backends import Array, Pointer, Transfers
from .buffers import HostPool
from .disk import Disk, finish
from .mapped_files import MappedFiles


@frozen(eq=False)
class Move:
    """Range in transfer, piece by piece.

    `host` is the pinned memory that it passes through, if any.
    """

    pieces: list[Future[None]]
    host: Array | None
    pool: HostPool

    def wait(self) -> None:
        """Wait for the whole transfer; raise its error."""
        try:
            finish(self.pieces)
        finally:
            if self.host is not None:
                self.pool.give(self.host)


@define
class Mover:
    """Starter of moves.

    Outgoing moves are recorded until they end, so that nothing reads a range before it is written. Files in host memory
    are `mapped`.
    """

    disk: Disk
    transfers: Transfers
    pool: HostPool
    mapped: MappedFiles
    leaving: dict[object, Move] = field(factory=dict)

    def fetch(self, path: Path, start: int, nbytes: int, place: Pointer) -> Move:
        """Start to read a range of a file to the device."""
        found = self.mapped.find(path)
        host = self.pool.take(nbytes) if found is None else found[start:]

        def upload_range(begin: int, end: int) -> None:
            self.transfers.upload(Pointer(place.buffer, place.offset + begin), host[begin:end])

        if found is not None:
            return Move(self.disk.copy(upload_range, nbytes), None, self.pool)
        return Move(self.disk.read(path, start, host, nbytes, upload_range), host, self.pool)

    def store(self, path: Path, start: int, nbytes: int, place: Pointer, key: object = None) -> Move:
        """Start to write device memory to a range of a file."""
        found = self.mapped.find(path)
        host = self.pool.take(nbytes) if found is None else found[start:]

        def download_range(begin: int, end: int) -> None:
            self.transfers.download(host[begin:end], Pointer(place.buffer, place.offset + begin))

        if found is not None:
            move = Move(self.disk.copy(download_range, nbytes, writes=True), None, self.pool)
        else:
            move = Move(self.disk.write(path, start, host, nbytes, download_range), host, self.pool)
        self.leaving[move if key is None else key] = move
        return move

    def wait_stored(self, key: object) -> None:
        """Wait for the outgoing move under a key."""
        move = self.leaving.pop(key, None)
        if move is not None:
            move.wait()

    def drain(self) -> None:
        """Wait for all outgoing moves."""
        for key in list(self.leaving):
            self.wait_stored(key)
