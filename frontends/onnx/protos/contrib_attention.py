"""ONNX Runtime's attention and rotary embedding as standard functions.

    RotaryEmbedding (x, positions, cos, sin);    Attention (x, weights, bias, padding, past, added)
    MultiHeadAttention (q, k, v, bias, padding, added, past_k, past_v)
    GroupQueryAttention (q, k, v, past_k, past_v, last, total, cos, sin): `last` numbers the last key of each sequence

Past keys of a group query are a cache of fixed length: new ones follow those of their sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .contrib_text import NodeUse, Text
from .contrib_text import attributes_text as _attributes

#: Attributes of later versions.
_GROUP_OPTIONS = ("qk_output", "smooth_softmax", "k_quant_type", "v_quant_type")


def _integers(name: str, values: Sequence[int], shape: Sequence[int] | None = None) -> str:
    """Return the line of a constant tensor."""
    sizes = ", ".join(map(str, [len(values)] if shape is None else shape))
    return f"{name} = Constant <value = int64[{sizes}] {{{', '.join(map(str, values))}}}> ()"


def _reshape(result: str, value: str, shape: Sequence[int]) -> list[str]:
    return [_integers(f"{result}_shape", shape), f"{result} = Reshape ({value}, {result}_shape)"]


def _split_heads(result: str, value: str, shape: Sequence[int]) -> list[str]:
    """Return the lines that reshape rows to `shape`, and exchange heads and positions."""
    return [
        *_reshape(f"{result}_rows", value, shape),
        f"{result} = Transpose <perm = [0, 2, 1, 3]> ({result}_rows)",
    ]


def _join_heads(value: str, shape: Sequence[int]) -> list[str]:
    return [f"{value}_turned = Transpose <perm = [0, 2, 1, 3]> ({value})", *_reshape("y", f"{value}_turned", shape)]


def rotary_embedding(use: NodeUse) -> Text:
    """Return the text of rotary embedding; a single position begins.

    Raises `ValueError` for scaled angles.
    """
    (*batch, width), given = use.shape(0), {"interleaved": int(use.get("interleaved", 0))}
    rows, cos, positions = batch[0], use.shape(2), use.shape(1)
    length = batch[-1]
    if float(use.get("scale", 1.0)) != 1.0:
        raise ValueError("scaled angles")
    heads = int(use.get("num_heads", 0))
    if len(batch) == 2 and not heads:
        part = int(use.get("rotary_embedding_dim", 0)) or 2 * cos[1]
        heads = width // part
    if len(batch) == 2:
        given["num_heads"] = heads
    given["rotary_embedding_dim"] = int(use.get("rotary_embedding_dim", 0))
    lines = [_integers("steps", range(length)), _integers("every_shape", [rows, length])]
    lines += ["at = Add (positions, steps)"] if prod(positions) == 1 else ["at = Identity (positions)"]
    lines += ["every = Expand (at, every_shape)", f"y = RotaryEmbedding {_attributes(**given)} (x, cos, sin, every)"]
    return ("x", "positions", "cos", "sin"), ("y",), lines


def multi_head_attention(use: NodeUse) -> Text:
    """Return the text of attention with equally many heads of keys.

    Raises `ValueError` for operands that share a tensor.
    """
    heads, (batch, rows, width) = int(use.attributes["num_heads"]), use.shape(0)
    if not (use.has(1) and use.has(2)) or use.has(8) or use.has(9):
        raise ValueError("joined operands, or a cache beside its own indices")
    size, value_width = width // heads, use.shape(2)[-1]
    lines, names = list[str](), {"q": "q", "k": "k", "v": "v"}
    if use.has(3):
        begin = 0
        for name, end in (("q", width), ("k", 2 * width), ("v", use.shape(3)[0])):
            lines += [_integers(f"{name}_from", [begin]), _integers(f"{name}_to", [end])]
            lines.append(f"{name}_bias = Slice (bias, {name}_from, {name}_to)")
            begin = end
    for place, name in enumerate(names):
        whole = len(use.shape(place)) == 4
        if use.has(3):
            shape = (heads, 1, -1) if whole else (1, -1)
            lines += _reshape(f"{name}_row", f"{name}_bias", shape)
            lines.append(f"{name}_moved = Add ({name}, {name}_row)")
            names[name] = f"{name}_moved"
        if not whole:
            each = size if name != "v" else value_width // heads
            lines += _split_heads(f"{name}_heads", names[name], [batch, -1, heads, each])
            names[name] = f"{name}_heads"
    value_size = value_width if len(use.shape(2)) == 4 else value_width // heads
    columns = use.shape(1)[-2] + (use.shape(6)[2] if use.has(6) else 0)
    mask = _added_masks(use, batch, columns, lines)
    given: dict[str, object] = {"is_causal": int(use.get("unidirectional", 0))}
    if float(use.get("scale", 0.0)):
        given["scale"] = float(use.get("scale", 0.0))
    past = ", past_k, past_v" if use.has(6) else ""
    operands = ", ".join([*names.values(), *([mask] if mask or past else [])])
    lines.append(f"z, present_k, present_v = Attention {_attributes(**given)} ({operands}{past})")
    lines += _join_heads("z", [batch, rows, heads * value_size])
    parameters = ("q", "k", "v", "bias", "padding", "added", "past_k", "past_v")
    return parameters, ("y", "present_k", "present_v"), lines


def joined_attention(use: NodeUse) -> Text:
    """Return the text of attention with one matrix of weights.

    Raises `ValueError` for past keys, and rotary embedding within.
    """
    if use.has(4) or use.has(6) or use.get("do_rotary", 0):
        raise ValueError("past keys or rotary embedding")
    size = use.shape(1)[1] // 3
    sizes = use.get("qkv_hidden_sizes", None) or [size] * 3
    names = ("num_heads", "unidirectional", "scale", "mask_filter_value")
    given = _attributes(**{name: use.attributes[name] for name in names if name in use.attributes})
    optional = [name if use.has(place) else '""' for name, place in (("padding", 3), ("added", 5))]
    while optional and optional[-1] == '""':
        optional.pop()
    operands = ", ".join(["q", "k", "v", *(['""', *optional] if optional else [])])
    lines = [
        "product = MatMul (x, weights)",
        "whole = Add (product, bias)" if use.has(2) else "whole = Identity (product)",
        _integers("sizes", [int(n) for n in sizes]),
        "q, k, v = Split <axis = -1> (whole, sizes)",
        f"y = com.microsoft.MultiHeadAttention {given} ({operands})",
    ]
    return ("x", "weights", "bias", "padding", "past", "added"), ("y",), lines


def _added_masks(use: NodeUse, batch: int, columns: int, lines: list[str]) -> str:
    """Append the lines of the mask added to scores, and return its name."""
    found = []
    if use.has(4):
        shape = use.shape(4)
        if shape == (batch,):
            lines += [_integers("columns", range(columns)), *_reshape("ends", "padding", [batch, 1])]
            lines += ["ends_wide = Cast <to = 7> (ends)", "kept = Less (columns, ends_wide)"]
        elif shape[-1] == columns and len(shape) in (2, 3):
            lines.append("kept = Cast <to = 9> (padding)")
        else:
            raise ValueError(f"a padding mask of {shape}")
        lines += _reshape("kept_all", "kept", [batch, 1, shape[1] if len(shape) == 3 else 1, columns])
        lines.append(f"zero = Constant {_attributes(value_float=0.0)} ()")
        lines.append(f"least = Constant {_attributes(value_float=float(use.get('mask_filter_value', -10000.0)))} ()")
        lines += ["masked_real = Where (kept_all, zero, least)", "masked = CastLike (masked_real, q)"]
        found.append("masked")
    if use.has(5):
        found.append("added")
    if len(found) < 2:
        return found[0] if found else ""
    lines.append("mask = Add (masked, added)")
    return "mask"


def group_query_attention(use: NodeUse) -> Text:
    """Return the text of causal grouped attention with a cache.

    Raises `ValueError` for quantised caches, sinks and results besides those of the first version.
    """
    heads, groups = int(use.attributes["num_heads"]), int(use.attributes["kv_num_heads"])
    if any(use.get(name, 0) not in (0, -1, "NONE") for name in _GROUP_OPTIONS) or any(map(use.has, range(9, 14))):
        raise ValueError("other operands than those of the first version")
    batch, rows, width = use.shape(0)
    size = width // heads if use.has(1) else width // (heads + 2 * groups)
    lines, names = [], dict(zip("qkv", "qkv", strict=True))
    if not use.has(1):
        parts = f"{heads * size}, {groups * size}, {groups * size}"
        lines += [f"parts = Constant <value_ints = [{parts}]> ()", "q_own, k_own, v_own = Split <axis = -1> (q, parts)"]
        names = {name: f"{name}_own" for name in names}
    lines += [_integers("before", [1 - rows]), _integers("none", [0]), _integers("steps", range(rows))]
    lines += ["last_wide = Cast <to = 7> (last)", *_reshape("last_column", "last_wide", [batch, 1])]
    lines += ["begin_own = Add (last_column, before)", "begin = Max (begin_own, none)", "at = Add (begin, steps)"]
    if int(use.get("do_rotary", 0)):
        for name, count in (("q", heads), ("k", groups)):
            given = {"num_heads": count, "interleaved": int(use.get("rotary_interleaved", 0))}
            given["rotary_embedding_dim"] = part if (part := 2 * use.shape(7)[1]) < size else 0
            lines.append(f"{name}_turned = RotaryEmbedding {_attributes(**given)} ({names[name]}, cos, sin, at)")
            names[name] = f"{name}_turned"
    for name, count in (("q", heads), ("k", groups), ("v", groups)):
        lines += _split_heads(f"{name}_heads", names[name], [batch, rows, count, size])
    columns = use.shape(3)[2] if use.has(3) else 0
    if columns:
        lines += [*_reshape("place", "at", [batch, 1, rows, 1]), *_place_of_rows(batch, groups, rows)]
        lines += [f"present_{n} = ScatterND (past_{n}, places, {n}_heads)" for n in "kv"]
    else:
        columns = rows
        lines += [*_reshape("place", "at", [batch, 1, rows, 1])]
        lines += [f"present_{n} = Identity ({n}_heads)" for n in "kv"]
    lines += [_integers("columns", range(columns)), "mask_all = LessOrEqual (columns, place)"]
    mask, window = "mask_all", int(use.get("local_window_size", -1))
    if window > 0:
        lines += [_integers("window", [window]), "first = Sub (place, window)", "near = Greater (columns, first)"]
        lines.append("mask = And (mask_all, near)")
        mask = "mask"
    options = {"scale": float(use.get("scale", 0.0)), "softcap": float(use.get("softcap", 0.0))}
    given_text = _attributes(**{name: value for name, value in options.items() if value})
    lines.append(f"z = Attention {given_text} (q_heads, present_k, present_v, {mask})")
    lines += _join_heads("z", [batch, rows, heads * size])
    parameters = ("q", "k", "v", "past_k", "past_v", "last", "total", "cos", "sin")
    return parameters, ("y", "present_k", "present_v"), lines


def _place_of_rows(batch: int, groups: int, rows: int) -> list[str]:
    """Return the lines of the places of new rows in a cache: sequence, head, position."""
    return [
        _integers("whole_shape", [batch, groups, rows, 1]),
        _integers("sequence", range(batch), (batch, 1, 1, 1)),
        _integers("group", range(groups), (1, groups, 1, 1)),
        *(f"{name}_all = Expand ({name}, whole_shape)" for name in ("sequence", "group", "place")),
        "places = Concat <axis = -1> (sequence_all, group_all, place_all)",
    ]
