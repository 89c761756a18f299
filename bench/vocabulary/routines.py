"""Operations that vendors give routines of their own, from `routines.toml`, with targets in `goals.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import evolve
from cuts.bench.vocabulary.gradients import gradient
from cuts.bench.vocabulary.operation import Given, Sizes, UserOperation, integers, unit, x
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
    """Return attention of 8-bit floats with scales of heads; weights are rounded to 8 bits."""
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


def heads(b: int, h: int, g: int, s: int, d: int) -> Givens:
    """Return queries, keys and values."""
    return x(b, h, s, d), x(b, g, s, d), x(b, g, s, d)


def paged(b: int, h: int, g: int, s: int, d: int) -> Givens:
    """Return queries, keys and values in pages of 64, and the pages of each batch element."""
    pages = b * s // 64
    return x(b, h, 1, d), x(pages, 64, g, d), x(pages, 64, g, d), integers(pages, b, s // 64)


def narrow(b: int, h: int, g: int, s: int, d: int) -> Givens:
    """Return 8-bit queries, keys, values along keys, and two scales a head."""
    large = (evolve(x(*shape), stored=DType.F8E4M3) for shape in ((b, h, s, d), (b, g, s, d), (b, g, d, s)))
    return *large, *(evolve(x(h), draw="positive", stored=DType.F32),) * 2


def spread(how: str, table: Any, index: Any, added: Any) -> Any:
    """Return a reduction of rows into those of a table."""
    return table.scatter_reduce(0, index[:, None].expand_as(added), added, how, include_self=False)


def scan(step: Call, first: Any, rows: tuple[Any, ...]) -> Any:
    """Return a recurrence's results along dim 1."""
    run: Any = import_module("torch._higher_order_ops.scan").scan
    return run(step, first, tuple(each.transpose(0, 1) for each in rows))[1].transpose(0, 1)


def gated(gate: Any, rows: Any) -> Any:
    """Return sums whose earlier terms decay."""

    def step(state: Any, each: Any) -> Any:
        state = each[0].exp() * state + each[1]
        return state, state.clone()

    return scan(step, torch.zeros_like(rows[:, 0]), (gate, rows))


def selective(u: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a selective scan."""

    def step(state: Any, each: Any) -> Any:
        ut, dt, bt, ct = each
        state = torch.exp(dt[..., None] * a) * state + (dt * ut)[..., None] * bt[:, None, :]
        return state, (state * ct[:, None, :]).sum(-1)

    return scan(step, u.new_zeros(u.shape[0], u.shape[2], a.shape[1]), (u, delta, b, c))


def scaled(scale: float, given: Given) -> Given:
    """Return an operand with scaled numbers."""
    return evolve(given, scale=scale)


def states(b: int, t: int, d: int) -> Givens:
    """Return operands of a selective scan with 16 states a channel."""
    decay = scaled(-1.0, evolve(x(d, 16), draw="positive"))
    return x(b, t, d), scaled(0.1, unit(b, t, d)), decay, x(b, t, 16), x(b, t, 16)


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
    """Return the Triton kernel of a recurrence or of its gradient."""
    own = name.removeprefix("gradient of ") + ("_gradient" if name.startswith("gradient") else "")
    return {"triton": lambda *given: getattr(import_module("cuts.bench.vocabulary.recurrences"), own)(*given)}


#: Names of the texts of rows.
NAMES: dict[str, Any] = {
    **globals(),
    "F": torch.nn.functional,
    "fft": torch.fft,
    "aten": torch.ops.aten,
    "real": torch.view_as_real,
    "complex": torch.view_as_complex,
    "causal": partial(attend, is_causal=True),
    "causal_back": partial(attend_back, causal=True),
    "given": lambda *shape: (x(*shape),),
    "pairs": lambda *shape: (x(*shape, 2),),
    "bags": lambda m, n, k: (x(m, k), integers(m, n), x(n, k)),
    "gates": lambda *shape: (scaled(-0.02, unit(*shape)), x(*shape)),
    "heads_gradient": lambda b, h, g, s, d: (*heads(b, h, g, s, d), x(b, h, s, d)),
}
_PEERS = {"backends": by_backends, "flex": by_flex, "triton": by_triton}


def read_text(text: str) -> Any:
    """Return the function that a table's text means."""
    return eval(f"lambda {text}" if ":" in text else text, NAMES)


def read_sizes(text: str) -> tuple[Sizes, ...]:
    """Return sizes such as 4x16 8x32."""
    return tuple(tuple(map(int, size.split("x"))) for size in text.split())


def read_rows(family: str, form: Mapping[str, Any]) -> Iterator[UserOperation]:
    """Yield the operations of a part of a family; a negative number of gradients is that of a loss."""
    more = {key: form[key] for key in ("deterministic",) if key in form} | {"plain": tuple(form.get("plain", PLAIN))}
    for precision in form["precisions"]:
        for name, tiny, sizes, given, call, *back in form["rows"]:
            texts = (read_sizes(tiny)[0], read_sizes(sizes), read_text(given), read_text(call))
            own = (
                gradient(name, *texts, abs(back[0]), back[0] < 0)
                if back
                else UserOperation(family, name, *texts[2:], *texts[:2])
            )
            traced = read_text(back[1]) if back[1:] else None
            peers = _PEERS[form["peers"]](own.call, own.name) if "peers" in form else {}
            yield evolve(own, family=family, precision=precision, peers=peers, traced=traced, **more)


PLAIN = ("torch", "compile")
_FILE = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
ROUTINES: tuple[UserOperation, ...] = tuple(
    operation
    for family, forms in tomllib.loads(_FILE).items()
    for form in forms
    for operation in read_rows(family, form)
)
