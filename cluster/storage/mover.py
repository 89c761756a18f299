"""Moves of file ranges to and from device buffers, while kernels run."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from attrs import define, field, frozen

from ...backends import Array, Pointer, Transfers
from .buffers import HostPool
from .disk import Disk, finish


@frozen(eq=False)
class Move:
    """Range in transfer, piece by piece.

    `host` is the pinned memory that it passes through.
    """

    pieces: list[Future[None]]
    host: Array
    pool: HostPool

    def wait(self) -> None:
        """Wait for the whole transfer; raise its error."""
        try:
            finish(self.pieces)
        finally:
            self.pool.give(self.host)


@define
class Mover:
    """Starter of moves.

    Outgoing moves are recorded until they end, so that nothing reads a range before it is written.
    """

    disk: Disk
    transfers: Transfers
    pool: HostPool
    leaving: dict[object, Move] = field(factory=dict)

    def fetch(self, path: Path, start: int, nbytes: int, place: Pointer) -> Move:
        """Start to read a range of a file to the device."""
        host = self.pool.take(nbytes)

        def upload_range(begin: int, end: int) -> None:
            self.transfers.upload(Pointer(place.buffer, place.offset + begin), host[begin:end])

        return Move(self.disk.read(path, start, host, nbytes, upload_range), host, self.pool)

    def store(self, path: Path, start: int, nbytes: int, place: Pointer, key: object = None) -> Move:
        """Start to write device memory to a range of a file."""
        host = self.pool.take(nbytes)

        def download_range(begin: int, end: int) -> None:
            self.transfers.download(host[begin:end], Pointer(place.buffer, place.offset + begin))

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
