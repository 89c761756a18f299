"""ONNX Runtime's own operations (`com.microsoft`) as standard functions.

Its quantiser and optimiser write these into models. Each becomes a text in ONNX's notation, generated for a node:
attributes are written out, and absent optional operands leave lines out. Quantised operations are computed on real
numbers between two conversions, as ONNX Runtime's documentation defines them.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from .contrib_attention import group_query_attention, joined_attention, multi_head_attention, rotary_embedding
from .contrib_text import NodeUse, Text, WriteText
from .contrib_text import attributes_text as _attributes
from .node_opset import set_opset
from .packed_products import packed_product

DOMAIN = "com.microsoft"
#: Version of the standard in which texts are written: the first with attention.
_VERSION = 23
#: Operations of tensors that are laid out for one processor.
_LAYOUT = "com.microsoft.nchwc."


def _real(name: str, **axis: int) -> str:
    return f"{name}_real = DequantizeLinear {_attributes(**axis)} ({name}, {name}_scale, {name}_zero)"


def _elementwise(op: str) -> WriteText:
    operands = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero")
    lines = (_real("a"), _real("b"), f"y_real = {op} (a_real, b_real)", "y = QuantizeLinear (y_real, y_scale, y_zero)")
    return lambda use: (operands, ("y",), lines)


def _unary(op: str, *names: str) -> WriteText:
    """Return the text of an operation of one quantised tensor, with some of its attributes."""

    def write(use: NodeUse) -> Text:
        given = {name: use.attributes[name] for name in names if name in use.attributes}
        lines = (
            _real("x"),
            f"y_real = {op} {_attributes(**given)} (x_real)",
            "y = QuantizeLinear (y_real, y_scale, y_zero)",
        )
        return ("x", "x_scale", "x_zero", "y_scale", "y_zero"), ("y",), lines

    return write


def _concat(use: NodeUse) -> Text:
    count = (len(use.present) - 2) // 3
    parts = [f"x{n}" for n in range(count)]
    operands = ["y_scale", "y_zero", *(name for part in parts for name in (part, f"{part}_scale", f"{part}_zero"))]
    whole = f"y_real = Concat {_attributes(axis=use.get('axis', 0))} ({', '.join(f'{part}_real' for part in parts)})"
    return operands, ("y",), (*map(_real, parts), whole, "y = QuantizeLinear (y_real, y_scale, y_zero)")


def _product(use: NodeUse) -> Text:
    """Quantised matrix product with a bias in units of both scales."""
    operands = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "c", "y_scale", "y_zero")
    flags = {
        "transA": int(use.get("transA", 0)),
        "transB": int(use.get("transB", 0)),
        "alpha": float(use.get("alpha", 1.0)),
    }
    lines = [_real("a"), _real("b", axis=0 if flags["transB"] else 1)]
    if use.has(6):
        lines += ["steps = Mul (a_scale, b_scale)", "wide = Cast <to = 1> (c)", "bias = Mul (wide, steps)"]
    ends = use.has(7)
    lines.append(
        f"{'y_real' if ends else 'y'} = Gemm {_attributes(**flags)} (a_real, b_real{', bias' if use.has(6) else ''})"
    )
    return operands, ("y",), [*lines, *(["y = QuantizeLinear (y_real, y_scale, y_zero)"] if ends else [])]


def _rescaled_product(use: NodeUse) -> Text:
    """Matrix product of dequantised operands."""
    bias = use.has(6)
    zeros = ", a_zero" if use.has(4) else "", ", b_zero" if use.has(5) else ""
    lines = [f"p = DequantizeLinear (a, a_scale{zeros[0]})", f"q = DequantizeLinear <axis = 1> (b, b_scale{zeros[1]})"]
    lines += ["m = MatMul (p, q)", "y = Add (m, bias)"] if bias else ["y = MatMul (p, q)"]
    return ("a", "b", "a_scale", "b_scale", "a_zero", "b_zero", "bias"), ("y",), lines


def _dynamic_product(use: NodeUse) -> Text:
    """Matrix product whose first operand is quantised dynamically."""
    zero = ", b_zero" if use.has(3) else ""
    lines = [
        "r, s, z = DynamicQuantizeLinear (a)",
        "p = DequantizeLinear (r, s, z)",
        f"q = DequantizeLinear <axis = 1> (b, b_scale{zero})",
    ]
    lines += ["m = MatMul (p, q)", "y = Add (m, bias)"] if use.has(4) else ["y = MatMul (p, q)"]
    return ("a", "b", "b_scale", "b_zero", "bias"), ("y",), lines


def _dequantize(use: NodeUse) -> Text:
    """Real numbers of integers, with the attributes of later versions of the standard."""
    given = {name: int(use.attributes[name]) for name in ("axis", "block_size") if name in use.attributes}
    zero = ", z" if use.has(2) else ""
    return ("x", "s", "z"), ("y",), [f"y = DequantizeLinear {_attributes(**given)} (x, s{zero})"]


def _gelu(approximate: str) -> WriteText:
    def write(use: NodeUse) -> Text:
        lines = ["h = Add (x, b)"] if use.has(1) else ["h = Identity (x)"]
        return ("x", "b"), ("y",), [*lines, f'y = Gelu <approximate = "{approximate}"> (h)']

    return write


def _quick_gelu(use: NodeUse) -> Text:
    lines = (
        f"k = Constant {_attributes(value_float=float(use.get('alpha', 1.702)))} ()",
        "h = Mul (k, x)",
        "s = Sigmoid (h)",
        "y = Mul (x, s)",
    )
    return ("x",), ("y",), lines


def _skip_norm(use: NodeUse) -> Text:
    """Layer norm of a residual sum; the sum is the fourth result."""
    plus = ["more = Add (x, skip)", "total = Add (more, bias)"] if use.has(4) else ["total = Add (x, skip)"]
    bias = ", beta" if use.has(3) else ""
    norm = (
        f"y = LayerNormalization {_attributes(axis=-1, epsilon=float(use.get('epsilon', 1e-12)))} (total, gamma{bias})"
    )
    return ("x", "skip", "gamma", "beta", "bias"), ("y", "mean", "deviation", "total"), [*plus, norm]


def _skip_rms_norm(use: NodeUse) -> Text:
    plus = ["more = Add (x, skip)", "total = Add (more, bias)"] if use.has(3) else ["total = Add (x, skip)"]
    norm = f"y = RMSNormalization {_attributes(axis=-1, epsilon=float(use.get('epsilon', 1e-12)))} (total, gamma)"
    return ("x", "skip", "gamma", "bias"), ("y", "mean", "deviation", "total"), [*plus, norm]


def _fused_product(use: NodeUse) -> Text:
    """Matrix product of transposed operands, scaled."""
    lines = []
    names = {}
    for name, flag in (("a", "transA"), ("b", "transB")):
        names[name] = f"{name}_turned" if use.get(flag, 0) else name
        if use.get(flag, 0):
            lines += [f'{name}_turned = Einsum <equation = "...ij->...ji"> ({name})']
    lines.append(f"m = MatMul ({names['a']}, {names['b']})")
    lines += [f"k = Constant {_attributes(value_float=float(use.get('alpha', 1.0)))} ()", "y = Mul (m, k)"]
    return ("a", "b"), ("y",), lines


#: Functions that may follow a convolution, and the names of their parameters in order.
_ACTIVATIONS: dict[str, Sequence[str]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}


def _fused_convolution(use: NodeUse) -> Text:
    """Convolution, addend and activation."""
    given: dict[str, object] = {"group": int(use.get("group", 1)), "auto_pad": f'"{use.get("auto_pad", "NOTSET")}"'}
    for name in ("dilations", "kernel_shape", "pads", "strides"):
        if name in use.attributes:
            given[name] = "[" + ", ".join(str(int(n)) for n in use.attributes[name]) + "]"
    lines = [f"c = Conv {_attributes(**given)} (x, w{', b' if use.has(2) else ''})"]
    lines += ["h = Add (c, z)"] if use.has(3) else ["h = Identity (c)"]
    function, values = str(use.get("activation", "")), use.get("activation_params", [])
    if not function:
        return ("x", "w", "b", "z"), ("y",), [*lines, "y = Identity (h)"]
    parameters = {name: float(value) for name, value in zip(_ACTIVATIONS[function], values, strict=False)}
    return ("x", "w", "b", "z"), ("y",), [*lines, f"y = {function} {_attributes(**parameters)} (h)"]


_TEXTS: dict[str, WriteText] = {
    "QLinearAdd": _elementwise("Add"), "QLinearMul": _elementwise("Mul"), "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"), "QLinearSoftmax": _unary("Softmax", "axis"),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool"), "QGemm": _product,
    "MatMulIntegerToFloat": _rescaled_product,
    "DynamicQuantizeMatMul": _dynamic_product, "Gelu": _gelu("none"), "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"), "QuickGelu": _quick_gelu, "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "FusedMatMul": _fused_product, "FusedConv": _fused_convolution, "MatMulNBits": packed_product,
    "DequantizeLinear": _dequantize, "RotaryEmbedding": rotary_embedding, "Attention": joined_attention,
    "MultiHeadAttention": multi_head_attention, "GroupQueryAttention": group_query_attention,
}  # fmt: skip


def unsupported_hint(op: str, usual: str) -> str:
    """Return the hint for an unsupported operation, else `usual`.

    `op` carries its domain.
    """
    return (
        "save the optimised model at ORT_ENABLE_EXTENDED; at ORT_ENABLE_ALL it is for one processor"
        if op.startswith(_LAYOUT)
        else usual
    )


def has_contrib(node: onnx.NodeProto) -> bool:
    """Return whether a node is an ONNX Runtime operation with a text."""
    return node.domain == DOMAIN and node.op_type in _TEXTS and not _channels_last(node)


def _channels_last(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)


def contrib_body(node: onnx.NodeProto, shapes: Sequence[tuple[int, ...] | None]) -> onnx.FunctionProto | None:
    """Return the function body of an ONNX Runtime operation, else None.

    The body is generated for the node's operands, of these `shapes`, and attributes.
    """
    if not has_contrib(node):
        return None
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    given = {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for name, value in values.items()
    }
    try:
        operands, results, lines = _TEXTS[node.op_type](NodeUse(given, tuple(map(bool, node.input)), tuple(shapes)))
        signature = f"{node.op_type} ({', '.join(operands)}) => ({', '.join(results)})"
        head = f'<domain: "{DOMAIN}", opset_import: ["" : {_VERSION}, "{DOMAIN}" : 1]>'
        body = onnx.parser.parse_function("\n".join([head, f"{signature} {{", *lines, "}"]))
    except (
        onnx.parser.ParseError,
        KeyError,
        TypeError,
        ValueError,
    ):  # attributes of other types or values than are documented
        return None
    for inner in body.node:
        set_opset(inner, _VERSION)
    return body
