"""Commands on arbitrary documents.

A command works or prints one line for each error; there is never a traceback or an internal error.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuts.tests.cli.conftest import MODEL, Cuts, Result

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    2**70,
    "",
    "x",
    "../x",
    "\u202e",
    [],
    {},
    [None],
    ["x"],
    [[1]],
    {"a": 1},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every part of a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def change_document(document: Any, rng: random.Random) -> Any:
    """Return the document with one part removed or replaced by junk."""
    result = copy.deepcopy(document)
    *way, last = rng.choice(list(places(document)))
    holder = result
    for key in way:
        holder = holder[key]
    if rng.random() < 0.2:
        del holder[last]
    else:
        holder[last] = rng.choice(JUNK)
    return result


def assert_explained(result: Result, document: Any) -> None:
    assert result.code in (0, 2, 3, 4), (result.err, document)
    assert "internal error" not in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_model(cuts: Cuts, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        document = change_document(MODEL, rng)
        (tmp_path / "graph.json").write_text(json.dumps(document))
        assert_explained(cuts("compile", "graph.json", "--target", "reference", "-o", "p"), document)


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_plan_whose_digest_fits(cuts: Cuts, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    assert cuts("compile", "graph.json", "--target", "reference", "-o", "p").code == 0
    plan = json.loads((tmp_path / "p" / "plan.json").read_text())
    for number in range(20):
        document = change_document(plan, rng)
        body = {key: value for key, value in document.items() if key not in ("format", "version", "digest")}
        document["digest"] = hashlib.sha256(
            json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()
        shutil.copytree(tmp_path / "p", tmp_path / f"p{number}")
        (tmp_path / f"p{number}" / "plan.json").write_text(json.dumps(document))
        for command in (("run",), ("verify",), ("explain",)):
            assert_explained(cuts(*command, f"p{number}"), document)


@pytest.mark.parametrize("seed", range(2))
def test_a_changed_declaration(cuts: Cuts, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    items = (
        "type T: float",
        "in x: T[N, ...s]",
        "attr by: int = 2",
        "let K = N * by",
        "out y: T[N, ...s]",
        "y = x * K",
    )
    text = "\n ".join(['op twice "twice" {', *items, "}\n"])
    model = {**MODEL, "nodes": [MODEL["nodes"][0], {"name": "act", "op": "twice", "inputs": ["h"], "outputs": ["y"]}]}
    (tmp_path / "graph.json").write_text(json.dumps(model))
    words = text.split(" ")
    for _ in range(40):
        mixed = list(words)
        mixed[rng.randrange(len(words))] = rng.choice((*words, "?", "(", "9" * 30, "each", "//", "[...s]", "y"))
        (tmp_path / "my.cuts").write_text(" ".join(mixed))
        result = cuts("compile", "graph.json", "--spec", "my.cuts", "--target", "reference", "-o", "p", "--verify")
        assert_explained(result, " ".join(mixed))
