"""Buffers of a plan's constants, by content where plans share them.

    constants w: f32[2, 3], b: f32[3]  ->  image of each buffer, digest of each large one

Plans of one model for several shapes have equal weights. Their large constants get a block each, found by digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from threading import Lock

import numpy as np
from attrs import evolve

from ...backends import Array
from ...ir import BackendError, quote, strided_view
from ..plan import Plan, extent_bytes, written_buffers

#: Least bytes of a constant that plans share on a device; smaller ones are copied for each plan.
MIN_SHARED_BYTES = 1 << 16

#: Returns the address of memory with the content of a digest, of so many bytes. Where none has it, new memory is
#: allocated and given to the last argument, which fills it.
Share = Callable[[str, int, Callable[[int], None]], int]


class ConstantImages:
    """Bytes of constant buffers; large ones are released after upload."""

    def __init__(self, images: Mapping[str, Array], large: tuple[str, ...]) -> None:
        self.large = large
        self.buffers = tuple(images)
        self._images = dict(images)
        self._digests: dict[str, str] = {}
        self._computing = Lock()

    @classmethod
    def of_plan(cls, plan: Plan) -> ConstantImages:
        """Return the images of a plan's constants.

        Constants that a step writes to are never large ones."""
        images: dict[str, Array] = {}
        for name, array in plan.constants.items():
            storage, type_ = plan.storages[name], plan.types[name]
            nbytes, size = plan.buffers[storage.buffer].nbytes, type_.dtype.size
            flat = np.ascontiguousarray(array).reshape(-1)
            dense = storage.start() == 0 and storage.strides == type_.strides and flat.nbytes == nbytes
            if dense and storage.buffer not in images:
                images[storage.buffer] = flat.view(np.uint8)
                continue
            if storage.buffer not in images or not images[storage.buffer].flags.owndata:
                known = images.get(storage.buffer)
                images[storage.buffer] = np.zeros(nbytes, np.uint8) if known is None else known.copy()
            image = images[storage.buffer]
            elements = image[: extent_bytes(type_, storage)].view(type_.dtype.numpy)[storage.start() :]
            strides = tuple(stride * size for stride in storage.strides)
            strided_view(elements, type_.shape, strides)[...] = array
        written = set(written_buffers(plan))
        large = tuple(b for b, image in images.items() if image.nbytes >= MIN_SHARED_BYTES and b not in written)
        return cls(images, large)

    def image(self, buffer: str) -> Array:
        """Return the bytes of a buffer.

        Raises `BackendError` where they were released and no device has them any more.
        """
        if buffer not in self._images:
            raise BackendError(
                f"constant {quote(buffer)}: expected its elements on the device, found none: their memory was freed",
                hint="compile the model again",
            )
        return self._images[buffer]

    def digest(self, buffer: str) -> str:
        """Return a digest of the bytes of a buffer."""
        with self._computing:
            if buffer not in self._digests:
                self._digests[buffer] = hashlib.sha256(self.image(buffer).data).hexdigest()
            return self._digests[buffer]

    def release(self) -> None:
        """Forget the elements of large constants, whose digests stay."""
        for buffer in self.large:
            self.digest(buffer)
            self._images.pop(buffer, None)


def without_elements(plan: Plan) -> Plan:
    """Return a plan without its model and without memory for constants."""
    constants = {n: np.broadcast_to(np.zeros((), a.dtype), a.shape) for n, a in plan.constants.items()}
    return evolve(plan, constants=constants, model=None)
