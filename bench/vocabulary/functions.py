"""Functions, operands and peers that the tables of rows name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import cuts
from attrs import evolve
from cuts.bench.vocabulary import operation
from cuts.bench.vocabulary.operation import Given, integers, unit, x
from cuts.ir.types import DType

torch: Any = import_module("torch")
Call = Callable[..., Any]
Givens = tuple[Given, ...]
#: Keys that a query's window has.
WINDOW = 1024


def attend(q: Any, k: Any, v: Any, **more: Any) -> Any:
    """Return attention, whose heads may share keys."""
    call = torch.nn.functional.scaled_dot_product_attention
    return call(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **more)


def window(q: Any, k: Any, v: Any) -> Any:
    """Return causal attention within a window."""
    place = torch.arange(q.shape[2], device=q.device)
    distance = place[:, None] - place
    return attend(q, k, v, attn_mask=(distance >= 0) & (distance < WINDOW))


def attend_pages(q: Any, keys: Any, values: Any, pages: Any) -> Any:
    """Return attention to keys and values in pages."""
    return attend(q, *(each[pages].flatten(1, 2).transpose(1, 2) for each in (keys, values)))


def attend_narrow(q: Any, k: Any, v: Any, a: Any, c: Any) -> Any:
    """Return attention of 8-bit floats, also of its weights."""
    scores = (q.float() @ k.float().mT) * (q.shape[-1] ** -0.5 * a[:, None, None])
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    sums = (256 * weights).to(torch.float8_e4m3fn).float() @ v.float().mT
    return (sums * c[:, None, None] / (256 * weights.sum(-1, keepdim=True))).bfloat16()


def attend_back(q: Any, k: Any, v: Any, gradient: Any, causal: bool = False) -> Any:
    """Return the gradients of attention as training by torch.compile records them."""
    attention: Any = import_module("cuts.frontends.torch.dynamo_backend.attention")._Attention
    saved = SimpleNamespace()
    saved.save_for_backward = lambda *tensors: setattr(saved, "saved_tensors", tensors)
    attention.forward(saved, q, k, v, None, 0, {"causal": causal, "scale": None})
    return attention.backward(saved, gradient)[:3]


def rotary(q: Any, angles: Any) -> Any:
    """Return rotated pairs of features."""
    first, second = q.chunk(2, -1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def windows(image: Any) -> Any:
    """Return shifted windows of an image as rows."""
    n, h, w_, c = image.shape
    parted = image.roll((-3, -3), (1, 2)).reshape(n, h // 7, 7, w_ // 7, 7, c)
    return parted.permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


def overlap(a: Any, b: Any) -> Any:
    """Return the share that boxes have in common, all pairs."""
    top, bottom = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:] + 1, b[:, 2:] + 1)
    common = (bottom - top).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] + 1 - box[:, :2]).prod(-1) for box in (a, b)]
    return common / (areas[0][:, None] + areas[1] - common)


def heads(b: int, h: int, g: int, s: int, d: int) -> Givens:
    """Return queries, keys and values."""
    return x(b, h, s, d), x(b, g, s, d), x(b, g, s, d)


def heads_in_pages(b: int, h: int, g: int, s: int, d: int) -> Givens:
    """Return queries, pages of 64 keys and values, and their numbers."""
    pages = b * s // 64
    return x(b, h, 1, d), x(pages, 64, g, d), x(pages, 64, g, d), Given((b, s // 64), "order")


def narrow(b: int, h: int, g: int, s: int, d: int) -> Givens:
    """Return 8-bit queries, keys, values along keys, and two scales a head."""
    large = (evolve(x(*shape), stored=DType.F8E4M3) for shape in ((b, h, s, d), (b, g, s, d), (b, g, d, s)))
    return *large, *(evolve(x(h), draw="positive", stored=DType.F32),) * 2


def reduce_rows(how: str, table: Any, index: Any, added: Any) -> Any:
    """Return a reduction of rows into those of a table."""
    return table.scatter_reduce(0, index[:, None].expand_as(added), added, how, include_self=False)


def scan(step: Call, first: Any, rows: tuple[Any, ...]) -> Any:
    """Return a recurrence's results along dim 1."""
    run: Any = import_module("torch._higher_order_ops.scan").scan
    return run(step, first, tuple(each.transpose(0, 1) for each in rows))[1].transpose(0, 1)


def gated_sums(gate: Any, rows: Any) -> Any:
    """Return sums whose earlier terms decay."""

    def step(state: Any, each: Any) -> Any:
        state = each[0].exp() * state + each[1]
        return state, state.clone()

    return scan(step, torch.zeros_like(rows[:, 0]), (gate, rows))


def selective_scan(u: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a selective scan."""

    def step(state: Any, each: Any) -> Any:
        ut, dt, bt, ct = each
        state = torch.exp(dt[..., None] * a) * state + (dt * ut)[..., None] * bt[:, None, :]
        return state, (state * ct[:, None, :]).sum(-1)

    return scan(step, u.new_zeros(u.shape[0], u.shape[2], a.shape[1]), (u, delta, b, c))


def scale_by(scale: float, given: Given) -> Given:
    """Return an operand with scaled numbers."""
    return evolve(given, scale=scale)


def states(b: int, t: int, d: int) -> Givens:
    """Return operands of a selective scan with 16 states a channel."""
    decay = scale_by(-1.0, evolve(x(d, 16), draw="positive"))
    return x(b, t, d), scale_by(0.1, unit(b, t, d)), decay, x(b, t, 16), x(b, t, 16)


def by_backends(call: Call, name: str) -> Mapping[str, Call]:
    """Return a call with the fused attention of two backends of PyTorch."""
    attention: Any = import_module("torch.nn.attention")

    def run(backend: Any, *tensors: Any) -> Any:
        with attention.sdpa_kernel(backend):
            return call(*tensors)

    backends = attention.SDPBackend
    return {"cudnn": partial(run, backends.CUDNN_ATTENTION), "flash": partial(run, backends.FLASH_ATTENTION)}


@cache
def _compiled_window(length: int) -> Call:
    flex: Any = import_module("torch.nn.attention.flex_attention")
    mask = flex.create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < WINDOW), None, None, length, length)
    return partial(torch.compile(flex.flex_attention, dynamic=False), block_mask=mask)


def by_flex(call: Call, name: str) -> Mapping[str, Call]:
    """Return FlexAttention within the window."""
    return {"flex": lambda q, k, v: _compiled_window(q.shape[2])(q, k, v)}


def by_triton(call: Call, name: str) -> Mapping[str, Call]:
    """Return Triton kernels of a recurrence or of its gradient."""
    own = name.removeprefix("gradient of ").replace(" ", "_") + ("_gradient" if name.startswith("gradient") else "")

    def run(width: int, *given: Any) -> Any:
        return getattr(import_module("cuts.bench.vocabulary.recurrences"), own)(*given, width=width)

    return {f"triton {width}": partial(run, width) for width in (8, 16, 32, 64)}


#: Names of the texts of tables: those of this module, where torch.compile looks for them.
NAMES: dict[str, Any] = globals()
NAMES |= {
    **{name: getattr(operation, name) for name in ("distinct", "positive", "w")},
    "F": torch.nn.functional,
    "fft": torch.fft,
    "aten": torch.ops.aten,
    "unique": cuts.torch_op([], "unique"),
    "padded": lambda a, size: torch.nn.functional.pad(a, (0, size - len(a))),
    "real": torch.view_as_real,
    "complex": torch.view_as_complex,
    "causal": partial(attend, is_causal=True),
    "causal_back": partial(attend_back, causal=True),
    "given": lambda *shape: (x(*shape),),
    "pairs": lambda *shape: (x(*shape, 2),),
    "bounds": lambda count, step: Given((count,), "bounds", limit=step),
    "bags": lambda m, n, k: (x(m, k), integers(m, n), x(n, k)),
    "gates": lambda *shape: (scale_by(-0.02, unit(*shape)), x(*shape)),
    "heads_gradient": lambda b, h, g, s, d: (*heads(b, h, g, s, d), x(b, h, s, d)),
}
#: Peers by the names of tables.
PEERS: Mapping[str, Callable[[Call, str], Mapping[str, Call]]] = {
    "backends": by_backends,
    "flex": by_flex,
    "triton": by_triton,
}
