# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"
"""Recurrences in Triton, peers of scans of `cuts`.

A program walks the steps with its states in registers. Gradients keep the states of the forward walk, and add sums over
programs with atomic operations.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _gated_sums(g, x, y, T, D, C: tl.constexpr, W: tl.constexpr, ENDS: tl.constexpr, p, e):
    b, c, d = tl.program_id(2), tl.program_id(1), tl.program_id(0) * W + tl.arange(0, W)
    n = tl.num_programs(1)
    m = d < D
    h = tl.zeros([W], tl.float32)
    s = tl.zeros([W], tl.float32)
    if not ENDS:
        for q in range(c):
            o = (b * n + q) * D + d
            h = tl.exp(tl.load(p + o, mask=m, other=0.0)) * h + tl.load(e + o, mask=m, other=0.0)
    at = (b.to(tl.int64) * T + c * C) * D + d
    for _ in tl.range(0, C, num_stages=4):
        gate = tl.load(g + at, mask=m, other=0.0).to(tl.float32)
        h = tl.exp(gate) * h + tl.load(x + at, mask=m, other=0.0).to(tl.float32)
        s += gate
        if not ENDS:
            tl.store(y + at, h.to(y.dtype.element_ty), mask=m)
        at += D
    if ENDS:
        o = (b * n + c) * D + d
        tl.store(p + o, s, mask=m)
        tl.store(e + o, h, mask=m)


@triton.jit
def _gated_sums_back(g, y, dy, dg, dx, T, D, W: tl.constexpr):
    b, d = tl.program_id(1), tl.program_id(0) * W + tl.arange(0, W)
    m = d < D
    at = b.to(tl.int64) * T * D + d + (T - 1) * D
    dh = tl.zeros([W], tl.float32)
    for t in tl.range(0, T, num_stages=8):
        gate = tl.load(g + at, mask=m, other=0.0).to(tl.float32)
        before = tl.load(y + at - D, mask=m & (t < T - 1), other=0.0).to(tl.float32)
        dh += tl.load(dy + at, mask=m, other=0.0).to(tl.float32)
        tl.store(dx + at, dh.to(dx.dtype.element_ty), mask=m)
        dh = dh * tl.exp(gate)
        tl.store(dg + at, (dh * before).to(dg.dtype.element_ty), mask=m)
        at -= D


@triton.jit
def _walk(u, dl, A, B, C, y, H, L, D, N: tl.constexpr, W: tl.constexpr, KEEP: tl.constexpr):
    b, d, n = tl.program_id(1), tl.program_id(0) * W + tl.arange(0, W), tl.arange(0, N)
    a = tl.load(A + d[:, None] * N + n[None, :]).to(tl.float32) * _LOG2E
    at = b.to(tl.int64) * L * D + d
    an = b.to(tl.int64) * L * N + n
    h = tl.zeros([W, N], tl.float32)
    for _ in tl.range(0, L, num_stages=4):
        uv, dv = tl.load(u + at).to(tl.float32), tl.load(dl + at).to(tl.float32)
        bv, cv = tl.load(B + an).to(tl.float32), tl.load(C + an).to(tl.float32)
        h = tl.exp2(dv[:, None] * a) * h + (dv * uv)[:, None] * bv[None, :]
        if KEEP:
            tl.store(H + at[:, None] * N + n[None, :], h)
        tl.store(y + at, tl.sum(h * cv[None, :], 1).to(y.dtype.element_ty))
        at += D
        an += N


@triton.jit
def _walk_back(u, dl, A, B, C, H, dy, du, dd, dA, dB, dC, L, D, N: tl.constexpr, W: tl.constexpr):
    b, d, n = tl.program_id(1), tl.program_id(0) * W + tl.arange(0, W), tl.arange(0, N)
    a = tl.load(A + d[:, None] * N + n[None, :]).to(tl.float32)
    at = b.to(tl.int64) * L * D + (L - 1) * D + d
    an = b.to(tl.int64) * L * N + (L - 1) * N + n
    dh = tl.zeros([W, N], tl.float32)
    da = tl.zeros([W, N], tl.float32)
    h = tl.load(H + at[:, None] * N + n[None, :])
    for t in tl.range(0, L, num_stages=3):
        uv, dv = tl.load(u + at).to(tl.float32), tl.load(dl + at).to(tl.float32)
        bv, cv = tl.load(B + an).to(tl.float32), tl.load(C + an).to(tl.float32)
        old = tl.load(H + (at - D)[:, None] * N + n[None, :], mask=t < L - 1, other=0.0)
        o = tl.load(dy + at).to(tl.float32)
        tl.atomic_add(dC + an, tl.sum(o[:, None] * h, 0))
        dh += o[:, None] * cv[None, :]
        decay = tl.exp2(dv[:, None] * a * _LOG2E)
        part = dh * decay * old
        s = tl.sum(dh * bv[None, :], 1)
        tl.store(du + at, (dv * s).to(du.dtype.element_ty))
        tl.store(dd + at, (uv * s + tl.sum(part * a, 1)).to(dd.dtype.element_ty))
        tl.atomic_add(dB + an, tl.sum(dh * (dv * uv)[:, None], 0))
        da += part * dv[:, None]
        dh = dh * decay
        h = old
        at -= D
        an -= N
    tl.atomic_add(dA + d[:, None] * N + n[None, :], da)


def gated_sums(g: Any, x: Any, width: int = 64, chunk: int = 128) -> Any:
    """Return gated sums in chunks, after a pass for their states."""
    b, t, d = g.shape
    chunk = chunk if t % chunk == 0 else t
    y, n = torch.empty_like(x), t // chunk
    p, e = (torch.empty(b, n, d, device=g.device) for _ in range(2))
    grid = (triton.cdiv(d, width), n, b)
    for ends in (True, False):
        _gated_sums[grid](g, x, y, t, d, chunk, width, ends, p, e, num_warps=1)
    return y


def gated_sums_gradient(g: Any, x: Any, dy: Any, width: int = 64) -> tuple[Any, ...]:
    """Return the gradients of gated sums."""
    (b, t, d), y = g.shape, gated_sums(g, x, width)
    dg, dx = torch.empty_like(g), torch.empty_like(x)
    _gated_sums_back[(triton.cdiv(d, width), b)](g, y, dy, dg, dx, t, d, width, num_warps=1)
    return dg, dx


def selective_scan(u: Any, dl: Any, a: Any, b: Any, c: Any, width: int = 8) -> Any:
    """Return a selective scan."""
    (n, t, d), y = u.shape, torch.empty_like(u)
    _walk[(d // width, n)](u, dl, a, b, c, y, y, t, d, a.shape[1], width, False, num_warps=width // 16 or 1)
    return y


def selective_scan_gradient(u: Any, dl: Any, a: Any, b: Any, c: Any, dy: Any, width: int = 16) -> tuple[Any, ...]:
    """Return the gradients of a selective scan."""
    (n, t, d), y = u.shape, torch.empty_like(u)
    states = torch.empty(n, t, d, a.shape[1], device=u.device)
    _walk[(d // width, n)](u, dl, a, b, c, y, states, t, d, a.shape[1], width, True, num_warps=width // 16 or 1)
    du, dd = torch.empty_like(u), torch.empty_like(dl)
    sums = [torch.zeros(each.shape, device=u.device) for each in (a, b, c)]
    given = (u, dl, a, b, c, states, dy, du, dd, *sums, t, d, a.shape[1], width)
    _walk_back[(d // width, n)](*given, num_warps=width // 16 or 1)
    return du, dd, *(each.to(u.dtype) for each in sums)
