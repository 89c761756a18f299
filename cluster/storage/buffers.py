"""Memory of a run: a capped device arena and pinned host memory.

Buffers of equal size are reused.
"""

from __future__ import annotations

from attrs import define, field

from ...backends import Array, Buffer, Device, Pointer, Transfers
from ...ir import BackendError
from ...runtime import align_bytes
from .layer_files import PAGE


@define
class Arena:
    """Memory of one device, limited to `cap` bytes.

    `used` counts the bytes taken, `uses` those of each purpose.
    """

    device: Device
    cap: float
    used: int = 0
    uses: dict[str, int] = field(factory=dict)

    def allocate(self, nbytes: int, what: str) -> Buffer:
        """Allocate zeroed memory.

        Raises `BackendError` where the cap would be exceeded, with the uses of the rest.
        """
        size = align_bytes(max(nbytes, 1))
        if self.used + size > self.cap:
            most = sorted(self.uses.items(), key=lambda item: -item[1])[:4]
            taken = ", ".join(f"{name} {held / 1e6:.1f} MB" for name, held in most)
            raise BackendError(
                f"{what}: {size / 1e6:.1f} MB are {(self.used + size - self.cap) / 1e6:.1f} MB more than fits in the "
                f"{self.cap / 1e6:.1f} MB of device memory that the plan may use; {self.used / 1e6:.1f} MB are taken "
                f"({taken})",
                hint="take a way with less in memory (--resident nothing, --activations offload), "
                "a smaller micro-batch or more memory",
            )
        self.used += size
        self.uses[what] = self.uses.get(what, 0) + size
        made = self.device.allocate(size)
        self.device.synchronize()  # it is filled with zeros in the kernels' queue, and copies go by another
        return made


@define
class Slots:
    """Pool of device buffers, by default of one size.

    A new buffer is made when none that is free has room, within the arena's cap.
    """

    arena: Arena
    nbytes: int
    what: str
    free: list[Buffer] = field(factory=list)

    def take(self, nbytes: int | None = None) -> Buffer:
        """Return the smallest free buffer of at least so many bytes."""
        size = self.nbytes if nbytes is None else nbytes
        fitting = [place for place, buffer in enumerate(self.free) if buffer.nbytes >= size]
        if not fitting:
            return self.arena.allocate(size, self.what)
        return self.free.pop(min(fitting[::-1], key=lambda place: self.free[place].nbytes))

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back."""
        self.free.append(buffer)


@define
class HostPool:
    """Pinned host buffers by size, each with room for whole pages."""

    transfers: Transfers
    free: dict[int, list[Array]] = field(factory=dict)

    def take(self, nbytes: int) -> Array:
        """Return a free buffer of at least so many bytes."""
        size = -(-nbytes // PAGE) * PAGE
        kept = self.free.setdefault(size, [])
        return kept.pop() if kept else self.transfers.allocate_pinned(size)

    def give(self, buffer: Array) -> None:
        """Take a buffer back."""
        self.free.setdefault(buffer.nbytes, []).append(buffer)


@define(eq=False)
class CountedBuffer:
    """Device buffer with a count of its users."""

    slots: Slots
    buffer: Buffer
    needs: int = 1

    @property
    def place(self) -> Pointer:
        """The begin of the buffer."""
        return Pointer(self.buffer)

    def release(self) -> None:
        """Drop one of the needs."""
        self.needs -= 1
        if self.needs == 0:
            self.slots.give(self.buffer)
