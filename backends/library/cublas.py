"""cuBLAS through nvmath-python: matrix products and strided batches in strict fp32."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from attrs import frozen

from ...ir import install_command
from ..device import Buffer, Device, Launch, Pointer
from .recognise import Matrix, Product, find_product
from .routine import Library, Request, RoutineError

#: Workspace of cuBLAS in bytes, as recommended for Hopper. It is allocated up front, as a graph cannot allocate.
_WORKSPACE = 32 << 20
_MAX_INT = 2**31 - 1
#: Properties of a library's version (`libraryPropertyType`).
_MAJOR_MINOR_PATCH = (0, 1, 2)


@frozen
class GemmOperand:
    """Matrix as a cuBLAS operand, column by column.

    It has a transposition flag, and the leading dimension.
    """

    transposed: bool
    leading: int


@frozen
class GemmCall:
    """Arguments of a product `y = x1 @ x2` of column-major matrices.

    `first` and `second` name the operands.
    """

    rows: int
    columns: int
    first: Matrix
    second: Matrix
    result: Matrix
    operands: tuple[GemmOperand, GemmOperand]
    leading: int


def layout(rows: int, columns: int, matrix: Matrix) -> GemmOperand | None:
    """Return a matrix as an operand of cuBLAS.

    None where neither its rows nor its columns are contiguous.
    """
    if matrix.row == 1 or rows == 1:
        leading = matrix.column if columns > 1 else rows
        return GemmOperand(False, leading) if leading >= rows else None
    if matrix.column == 1 or columns == 1:
        leading = matrix.row
        return GemmOperand(True, leading) if leading >= columns else None
    return None


def find_call(product: Product) -> GemmCall | None:
    """Return the call that computes a product.

    A result with contiguous rows is the transpose of cuBLAS's result.
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
            and max(*sizes, left.leading, right.leading) <= _MAX_INT
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
        """Version of cuBLAS; it needs no device."""
        return ".".join(str(self._cublas.get_property(place)) for place in _MAJOR_MINOR_PATCH)

    def supports(self, request: Request) -> bool:
        """Return whether the group is a matrix product with readable layouts."""
        product = find_product(request.group, request.storages)
        return product is not None and find_call(product) is not None

    def prepare(self, device: Device, request: Request, places: Mapping[str, Pointer]) -> Launch:
        """Return the launch of one product, by cuBLAS's own heuristics.

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
        """Return the handle of a device, on its stream, with a workspace and pedantic math."""
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
    return pointer.address + 4 * elements


def open_library() -> CuBLAS:
    """Return cuBLAS.

    Raises `RoutineError` where its bindings cannot be imported.
    """
    try:
        library = CuBLAS(import_module("nvmath.bindings.cublas"))
        _ = library.version  # which loads the library of the bindings
        return library
    except (
        Exception
    ) as error:  # besides ImportError, the bindings raise errors of their own where the library is missing
        raise RoutineError(f"cuBLAS cannot be used: {error}", hint=install_command("libraries")) from error
