"""Lists of rows from tables, in the order of measurement.

A table has families; a row is name, size for tests, measured sizes, operands by size, function, and for gradients the
number of operands that have one (negative for a loss) and the function that `cuts` imports instead. Texts with ':' are
lambdas.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve
from cuts.bench.vocabulary.functions import NAMES, PEERS
from cuts.bench.vocabulary.gradients import gradient
from cuts.bench.vocabulary.operation import SizedOperation, Sizes, UserOperation


def read_text(text: str) -> Any:
    """Return the function that a table's text means."""
    return eval(f"lambda {text}" if ":" in text else text, NAMES)


def read_sizes(text: str) -> tuple[Sizes, ...]:
    """Return sizes such as 4x16 8x32."""
    return tuple(tuple(map(int, size.split("x"))) for size in text.split())


def read_rows(family: str, form: Mapping[str, Any]) -> Iterator[UserOperation]:
    """Yield the operations of a part of a family."""
    more = {key: form[key] for key in ("deterministic", "plain") if key in form}
    for precision in form.get("precisions", ["fp32"]):
        for name, tiny, sizes, given, call, *back in form["rows"]:
            texts = (read_sizes(tiny)[0], read_sizes(sizes), read_text(given), read_text(call))
            own = (
                gradient(name, *texts, abs(back[0]), back[0] < 0)
                if back and back[0]
                else UserOperation(family, name, *texts[2:], *texts[:2])
            )
            traced = read_text(back[1]) if back[1:] else None
            peers = PEERS[form["peers"]](own.call, own.name) if "peers" in form else {}
            yield evolve(own, family=family, precision=precision, peers=peers, traced=traced, **more)


def read_table(name: str) -> tuple[UserOperation, ...]:
    """Return the operations of a table."""
    families = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    return tuple(each for family, forms in families.items() for form in forms for each in read_rows(family, form))


OPERATIONS, GRADIENTS, ROUTINES = map(read_table, ("operations", "gradients", "routines"))
_FIRST_ROWS = [o.rows[n % 2] for n, o in enumerate(OPERATIONS)]
_SECOND = [o.rows[1 - n % 2] for n, o in enumerate(OPERATIONS)]
#: Every operation at one of its sizes before any at the other: a call that ends early has seen all of them.
ROWS: tuple[SizedOperation, ...] = (*_FIRST_ROWS, *_SECOND)
#: The first size of each before the second of any.
GRADIENT_ROWS: tuple[SizedOperation, ...] = tuple(o.rows[n] for n in (0, 1) for o in GRADIENTS)
#: Lists by name.
LISTS: Mapping[str, tuple[SizedOperation, ...]] = {
    "operations": ROWS,
    "gradients": GRADIENT_ROWS,
    "routines": tuple(row for operation in ROUTINES for row in operation.rows),
}
