"""ONNX's reductions, softmax and normalisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from attrs import frozen

from ....ir import DType
from ..call import Convert, NodeCall
from ..type_promotion import TypePromotion, widest


@frozen
class Reduce:
    """Reduction over axes.

    Axes are an attribute, or a constant operand since operator set 13 (sum) or 18.
    """

    op: str

    def __call__(self, call: NodeCall) -> None:
        """Convert a node."""
        axes = call.ints("axes", 1)
        keep = bool(call.attribute("keepdims", 1))
        if not axes and not call.attribute("noop_with_empty_axes", 0):
            axes = tuple(range(call.rank()))
        call.attribute("noop_with_empty_axes", 0)
        dtype, value = call.type(0).dtype, call.operand(0)
        if dtype is DType.BOOL:  # any and all: conditions are ordered as numbers
            found = call.emit(self.op, call.emit("cast", value, to="u8"), axes=axes or (), keepdims=keep)
            call.result("cast", found, to="bool")
        elif dtype.is_int and self.op in ("reduce_l2", "reduce_log_sum", "reduce_log_sum_exp"):
            found = call.emit(self.op, call.emit("cast", value, to="f64"), axes=axes or (), keepdims=keep)
            call.result("cast", found, to=dtype.value)
        else:
            call.result(self.op, value, axes=axes or (), keepdims=keep)


def _arg(op: str) -> Convert:
    def convert(call: NodeCall) -> None:
        flags = {
            name: bool(call.attribute(name, default)) for name, default in (("keepdims", 1), ("select_last_index", 0))
        }
        call.result(op, call.operand(0), axis=call.attribute("axis", 0), **flags)

    return convert


def _cumulative(op: str) -> Convert:
    def convert(call: NodeCall) -> None:
        flags = {name: bool(call.attribute(name, 0)) for name in ("exclusive", "reverse")}
        if call.builder.constant(call.operand(1)) is not None:
            call.result(op, call.operand(0), axis=call.number("axis", 1), **flags)
            return
        call.used.add("axis")
        call.give(_along_computed_axis(call, [partial(call.emit, op, axis=n, **flags) for n in range(call.rank())]))

    return convert


def _along_computed_axis(call: NodeCall, ways: Sequence[Callable[[str], str]]) -> str:
    """Return the result along the axis that the second operand names, of those along each axis."""
    kind, value = call.type(1).dtype, call.operand(0)
    axis = call.emit("reshape", call.operand(1), shape=(), allowzero=True)
    count = call.constant(len(ways), kind)
    axis = call.emit("mod", call.emit("add", axis, count), count)
    found: str = ways[0](value)
    for number, way in enumerate(ways[1:], 1):
        found = call.emit("where", call.emit("equal", axis, call.constant(number, kind)), way(value), found)
    return found


def _softmax(op: str) -> Convert:
    """Return the conversion of a softmax; before operator set 13 all axes from `axis` on are one."""

    def convert(call: NodeCall) -> None:
        if call.opset >= 13:
            call.result(op, call.operand(0), axis=call.attribute("axis", -1))
            return
        shape = call.type(0).shape
        axis = call.attribute("axis", 1) % max(1, len(shape))
        if all(extent == 1 for extent in shape[axis + 1 :]):
            call.result(op, call.operand(0), axis=axis)
            return
        inner = 1
        for extent in shape[axis:]:
            inner *= extent
        flat = call.emit("reshape", call.operand(0), shape=(*shape[:axis], inner), allowzero=True)
        call.result("reshape", call.emit(op, flat, axis=axis), shape=shape, allowzero=True)

    return convert


def _batch_norm(call: NodeCall) -> None:
    momentum = call.attribute("momentum", 0.9)
    if not call.attribute("spatial", 1):
        call.refuse("only statistics per channel are supported")
    if call.attribute("training_mode", 0):
        given = {"epsilon": call.attribute("epsilon", 1e-5), "momentum": momentum}
        call.result("batch_norm_training", *(call.operand(i) for i in range(5)), **given)
        return
    call.only_first_output()
    TypePromotion(_batch_norm_given, range(5), widest)(call)


def _batch_norm_given(call: NodeCall) -> None:
    call.result("batch_norm", *(call.operand(i) for i in range(5)), epsilon=call.attribute("epsilon", 1e-5))


def _layer_norm(call: NodeCall) -> None:
    call.attribute("stash_type", 1)
    call.only_first_output()
    given = {"axis": call.attribute("axis", -1), "epsilon": call.attribute("epsilon", 1e-5)}
    call.result("layer_norm", call.operand(0), call.operand(1), call.optional(2), **given)


def _rms_norm(call: NodeCall) -> None:
    call.attribute("stash_type", 1)
    call.result(
        "rms_norm",
        call.operand(0),
        call.operand(1),
        axis=call.attribute("axis", -1),
        epsilon=call.attribute("epsilon", 1e-5),
    )


def _instance_norm(call: NodeCall) -> None:
    call.result("instance_norm", *(call.operand(i) for i in range(3)), epsilon=call.attribute("epsilon", 1e-5))


def _group_norm(call: NodeCall) -> None:
    """Convert a group norm; before operator set 21 scale and bias are per group, ours are per channel."""
    call.attribute("stash_type", 1)
    groups, channels = call.attribute("num_groups"), call.type(0).shape[1]
    parameters = [call.operand(1), call.operand(2)]
    if call.opset < 21:
        for number, value in enumerate(parameters):
            wide = call.emit(
                "expand", call.emit("reshape", value, shape=(groups, 1)), shape=(groups, channels // groups)
            )
            parameters[number] = call.emit("reshape", wide, shape=(channels,))
    call.result("group_norm", call.operand(0), *parameters, num_groups=groups, epsilon=call.attribute("epsilon", 1e-5))


def _mean_variance_norm(call: NodeCall) -> None:
    """Convert by differences from the mean.

    The standard's body subtracts two squares, and is of float32 only.
    """
    axes = call.ints("axes") or (0, 2, 3)
    centred = call.emit("sub", call.operand(0), call.emit("reduce_mean", call.operand(0), axes=axes))
    spread = call.emit("sqrt", call.emit("reduce_mean", call.emit("mul", centred, centred), axes=axes))
    call.result("div", centred, call.emit("add", spread, call.constant(1e-9, call.type(0).dtype)))


def _lp_norm(call: NodeCall) -> None:
    call.result("lp_norm", call.operand(0), axis=call.attribute("axis", -1), p=call.attribute("p", 2))


def _lrn(call: NodeCall) -> None:
    given = {name: call.attribute(name, default) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))}
    call.result("lrn", call.operand(0), size=call.attribute("size"), **given)


TABLE: dict[str, Convert] = {
    **{f"Reduce{name}": Reduce(f"reduce_{name.lower()}") for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2")},
    "ReduceSumSquare": Reduce("reduce_sum_square"),
    "ReduceLogSum": Reduce("reduce_log_sum"),
    "ReduceLogSumExp": Reduce("reduce_log_sum_exp"),
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "LpNormalization": _lp_norm,
    "LRN": _lrn,
    "CumSum": _cumulative("cumsum"),
    "CumProd": _cumulative("cumprod"),
}
