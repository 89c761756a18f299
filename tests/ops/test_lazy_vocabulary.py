"""Lazy parsing of the package's vocabulary, which equals parsing all of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
from cuts.ir.errors import UnknownOp
from cuts.ir.source import Source
from cuts.ops import Registry
from cuts.ops.language.registry import _builtin
from cuts.ops.language.text import grammar, parser_cache


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


class Tables(dict[str, bytes]):
    """Cache of parsers in memory."""

    def get(self, facts: Mapping[str, str]) -> bytes | None:  # type: ignore[override]
        return super().get(repr(facts))

    def put(self, facts: Mapping[str, str], tables: bytes) -> None:
        self[repr(facts)] = tables


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    """Return an empty cache that the parser uses."""
    found = Tables()
    monkeypatch.setattr(parser_cache._PARSER_CACHE, "cache", found)
    grammar._lark.cache_clear()
    yield found
    grammar._lark.cache_clear()


def test_cached_tables_parse_as_the_grammar_does(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    derived = {name: _builtin.__wrapped__()[name] for name in ("conv", "softmax", "lstm")}
    assert len(tables) == 1
    grammar._lark.cache_clear()
    monkeypatch.setattr(grammar.Lark, "_build_parser", lambda parser: pytest.fail("the tables are known"))
    assert {name: _builtin.__wrapped__()[name] for name in derived} == derived


@pytest.mark.parametrize("damaged", [b"", b"no tables", b"N"])
def test_damaged_tables_are_derived_again(tables: Tables, damaged: bytes) -> None:
    declaration = _builtin.__wrapped__()["conv"]
    (facts,) = tables
    tables[facts] = damaged
    grammar._lark.cache_clear()
    assert _builtin.__wrapped__()["conv"] == declaration
    assert tables[facts] != damaged
