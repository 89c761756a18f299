"""cuBLAS through nvmath-python: products of matrices, and batches of them at a fixed distance, in strict fp32."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from attrs import frozen

from ..device import Buffer, Device, Launch, Pointer
from .contraction import Matrix, Product, find_product
from .routine import Library, Request, RoutineError

#: What cuBLAS may use besides the operands; this much is recommended for Hopper. Given up front: a graph is no place to
#: allocate.
_WORKSPACE = 32 << 20
_LARGEST = 2**31 - 1
#: The properties of a library that make up its version (`libraryPropertyType`).
_MAJOR_MINOR_PATCH = (0, 1, 2)


@frozen
class GemmOperand:
    """A matrix as cuBLAS takes it, column by column: whether it is transposed, and the distance of its columns."""

    transposed: bool
    leading: int


@frozen
class GemmCall:
    """The arguments of a product: `y = x1 @ x2` on matrices stored column by column. `first` and `second` name the
    operands.
    """

    rows: int
    columns: int
    first: Matrix
    second: Matrix
    result: Matrix
    operands: tuple[GemmOperand, GemmOperand]
    leading: int


def layout(rows: int, columns: int, matrix: Matrix) -> GemmOperand | None:
    """Return how cuBLAS can read a matrix, None where neither its rows nor its columns are contiguous."""
    if matrix.row == 1 or rows == 1:
        leading = matrix.column if columns > 1 else rows
        return GemmOperand(False, leading) if leading >= rows else None
    if matrix.column == 1 or columns == 1:
        leading = matrix.row
        return GemmOperand(True, leading) if leading >= columns else None
    return None


def find_call(product: Product) -> GemmCall | None:
    """Return the call that computes a product; a result whose rows are contiguous is the transpose of what cuBLAS
    writes.
    """
    ways = (
        (product.m, product.n, product.a, product.b, product.y),
        (product.n, product.m, product.b.transposed, product.a.transposed, product.y.transposed),
    )
    for rows, columns, first, second, result in ways:
        left, right = layout(rows, product.k, first), layout(product.k, columns, second)
        written = layout(rows, columns, result)
        sizes = (rows, columns, product.k, product.batch)
        if (
            left
            and right
            and written
            and not written.transposed
            and max(*sizes, left.leading, right.leading) <= _LARGEST
        ):
            return GemmCall(rows, columns, first, second, result, (left, right), written.leading)
    return None


class CuBLAS(Library):
    """cuBLAS with pedantic math: every product and sum in fp32."""

    name = "cublas"

    def __init__(self, bindings: Any) -> None:
        self._cublas = bindings
        self._handles: dict[int, tuple[int, Buffer]] = {}

    @property
    def version(self) -> str:
        """The version of cuBLAS; it needs no device."""
        return ".".join(str(self._cublas.get_property(place)) for place in _MAJOR_MINOR_PATCH)

    def supports(self, request: Request) -> bool:
        """Whether the group is a product of matrices that cuBLAS can read where they are."""
        product = find_product(request.group, request.storages)
        return product is not None and find_call(product) is not None

    def prepare(self, device: Device, request: Request, places: Mapping[str, Pointer]) -> Launch:
        """Return the launch of one product; cuBLAS chooses its kernel by its own heuristics.

        Raises `RoutineError` where cuBLAS does not compute the group.
        """
        product = find_product(request.group, request.storages)
        call = find_call(product) if product else None
        if product is None or call is None:
            raise RoutineError("cuBLAS does not compute this group")
        handle = self._handle(device)
        first, second, result = (_address(places[x.tensor], x.offset) for x in (call.first, call.second, call.result))
        flags = [int(self._cublas.Operation.T if o.transposed else self._cublas.Operation.N) for o in call.operands]
        scalars = np.array([1.0, 0.0], np.float32)  # read by cuBLAS during the call, from the host
        one, zero = scalars.ctypes.data, scalars.ctypes.data + 4
        launch, left, right = self._cublas.sgemm_strided_batched, call.operands[0], call.operands[1]

        def run(keep: object = (scalars, dict(places))) -> None:
            launch(
                handle, *flags, call.rows, call.columns, product.k, one, first, left.leading, call.first.batch,
                second, right.leading, call.second.batch, zero, result, call.leading, call.result.batch, product.batch,
            )  # fmt: skip

        return run

    def _handle(self, device: Device) -> int:
        """Return the handle of a device: on its stream, with a workspace of its own and pedantic math."""
        stream = device.stream_handle
        if stream not in self._handles:
            handle = int(self._cublas.create())
            workspace = device.allocate(_WORKSPACE)
            self._cublas.set_stream(handle, stream)
            self._cublas.set_workspace(handle, int(workspace.handle), _WORKSPACE)
            self._cublas.set_math_mode(handle, int(self._cublas.Math.PEDANTIC_MATH))
            self._handles[stream] = handle, workspace
        return self._handles[stream][0]


def _address(pointer: Pointer, elements: int) -> int:
    return int(pointer.buffer.handle) + pointer.offset + 4 * elements


def open_library() -> CuBLAS:
    """Return cuBLAS, or say what is missing.

    Raises `RoutineError` where its bindings cannot be imported.
    """
    try:
        library = CuBLAS(import_module("nvmath.bindings.cublas"))
        _ = library.version  # which loads what the bindings are of
        return library
    except (
        Exception
    ) as error:  # besides ImportError, the bindings raise errors of their own where the library is missing
        raise RoutineError(
            f"cuBLAS cannot be used: {error}", hint="pip install nvmath-python and nvidia-cublas"
        ) from error
