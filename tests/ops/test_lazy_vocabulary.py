"""Lazy parsing of the package's vocabulary, which equals parsing all of it."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
from cuts.ir.errors import UnknownOp
from cuts.ir.source import Source
from cuts.ops import Registry
from cuts.ops.language.registry import _builtin


def sources() -> list[Source]:
    folder = files("cuts.spec")
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".cuts"))
    return [Source(f"spec/{name}", folder.joinpath(name).read_text(encoding="utf-8")) for name in names]


def test_it_is_what_parsing_all_of_it_gives() -> None:
    whole, lazy = Registry().extend(*sources()), _builtin.__wrapped__()
    assert list(lazy) == list(whole)
    assert all(lazy[name] == whole[name] for name in whole)
    assert [lazy[name].span.position for name in lazy] == [whole[name].span.position for name in whole]


def test_only_what_is_asked_for_is_parsed() -> None:
    lazy = _builtin.__wrapped__()
    assert "conv" in lazy
    assert len(lazy._ops._made) == 0
    assert lazy["relu"].name == "relu"
    assert set(lazy._ops._made) == {"relu"}
    with pytest.raises(UnknownOp, match="did you mean"):
        lazy["rellu"]


def test_users_declarations_extend_it() -> None:
    lazy = _builtin.__wrapped__()
    mine = lazy.extend(Source("mine.cuts", 'op mine : unary "twice" { y = x + x }\n'))
    assert mine["mine"].family == "unary"
    assert "mine" not in lazy
    assert len(mine) == len(lazy) + 1


def test_threads_and_processes_may_ask_at_once() -> None:
    lazy = _builtin.__wrapped__()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: lazy["conv"], range(64)))
    assert all(each == found[0] for each in found)
    assert pickle.loads(pickle.dumps(lazy))["conv"] == found[0]
