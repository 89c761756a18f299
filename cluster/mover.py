"""Moving ranges of files to and from device buffers, while kernels run."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from attrs import define, field, frozen

from ..backends import Array, Pointer, Transfers
from .buffers import HostPool
from .disk import Disk, finish


@frozen(eq=False)
class Move:
    """A range under way, piece by piece; `host` is the pinned memory that it passes through."""

    pieces: list[Future[None]]
    host: Array
    pool: HostPool

    def wait(self) -> None:
        """Wait until all of it has moved; raise what went wrong."""
        try:
            finish(self.pieces)
        finally:
            self.pool.give(self.host)


@define
class Mover:
    """Starts moves; what leaves is remembered until it is gone, so that nothing reads what is not there yet."""

    disk: Disk
    transfers: Transfers
    pool: HostPool
    leaving: dict[object, Move] = field(factory=dict)

    def fetch(self, path: Path, start: int, nbytes: int, place: Pointer) -> Move:
        """Begin to bring a range of a file to the device."""
        host = self.pool.take(nbytes)

        def then(begin: int, end: int) -> None:
            self.transfers.upload(Pointer(place.buffer, place.offset + begin), host[begin:end])

        return Move(self.disk.read(path, start, host, nbytes, then), host, self.pool)

    def store(self, path: Path, start: int, nbytes: int, place: Pointer, key: object = None) -> Move:
        """Begin to take device memory to a range of a file."""
        host = self.pool.take(nbytes)

        def before(begin: int, end: int) -> None:
            self.transfers.download(host[begin:end], Pointer(place.buffer, place.offset + begin))

        move = Move(self.disk.write(path, start, host, nbytes, before), host, self.pool)
        self.leaving[key if key is not None else id(move)] = move
        return move

    def gone(self, key: object) -> None:
        """Wait until what leaves under a key is gone."""
        move = self.leaving.pop(key, None)
        if move is not None:
            move.wait()

    def drain(self) -> None:
        """Wait for all that leaves."""
        for key in list(self.leaving):
            self.gone(key)
