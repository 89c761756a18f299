"""ONNX's Fourier transforms."""

from __future__ import annotations

from ..call import Convert, NodeCall


def _dft(call: NodeCall) -> None:
    """Convert a DFT.

    The axis is an attribute before operator set 20; ours does not count the last axis of real and imaginary parts.
    """
    rank = call.rank()
    inverse, onesided = bool(call.attribute("inverse", 0)), bool(call.attribute("onesided", 0))
    axis = call.attribute("axis", 1) if call.opset < 20 else call.number("axis", 2, -2)
    axis = int(axis or 0) % rank
    length = call.number("dft_length", 1)
    given = {"axis": axis, "length": None if length is None else int(length)}
    if inverse and onesided:
        call.result("irdft", call.operand(0), **given)
    else:
        call.result("dft", call.operand(0), inverse=inverse, onesided=onesided, **given)


def _stft(call: NodeCall) -> None:
    """Convert an STFT: windowed frames of the signal, transformed."""
    step, window, length = call.number("frame_step", 1), call.optional(2), call.number("frame_length", 3)
    if step is None or (length is None and window is None):
        call.fail("a frame step, and a window or a frame length, are required")
    size = int(length) if length is not None else call.type(2).shape[0]
    shape = call.type(0).shape
    signal = (
        call.operand(0) if len(shape) == 3 else call.emit("reshape", call.operand(0), shape=(*shape, 1), allowzero=True)
    )
    cut = call.emit("frames", signal, window, length=size, step=int(step))
    call.result("dft", cut, axis=2, onesided=bool(call.attribute("onesided", 1)))


TABLE: dict[str, Convert] = {"DFT": _dft, "STFT": _stft}
