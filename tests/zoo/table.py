"""Table of architectures: `architectures.toml`, read and selected from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

TABLE = Path(__file__).with_name("architectures.toml")
LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")


@frozen
class Architecture:
    """Row of the table: a model in small and its inputs.

    `options` are those of the constructor or of the config, `inputs` has a text "<kind> <sizes>" for each argument.
    `reason` says why eager's results cannot be expected, where the model decides by rounding errors.
    """

    name: str
    library: str
    model: str
    options: Mapping[str, Any]
    inputs: Mapping[str, str]
    sample: bool
    reason: str = ""


def read_table() -> dict[str, Architecture]:
    """Return all architectures by name."""
    data = tomllib.loads(TABLE.read_text("utf-8"))
    return {each.name: each for library in LIBRARIES for each in _rows(library, data)}


def _rows(library: str, data: Mapping[str, Any]) -> Iterator[Architecture]:
    for kind, rows in data[library].items():
        for name, row in rows.items():
            inputs = {**data["inputs"][kind], **row.get("inputs", {})}
            yield Architecture(
                f"{library}/{name}",
                library,
                row.get("model", name),
                {**data["small"].get(library, {}), **row.get("options", {})},
                {key: text for key, text in inputs.items() if text},
                row.get("sample", False),
                row.get("reason", ""),
            )


def select(
    names: Sequence[str] = (), library: str | None = None, shard: tuple[int, int] = (1, 1), sample: bool = False
) -> list[Architecture]:
    """Return architectures by parts of names, library, sample or shard.

    A shard is a number and a count.
    """
    rows = [
        each
        for each in read_table().values()
        if (not names or any(name in each.name for name in names))
        and library in (None, each.library)
        and (each.sample or not sample)
    ]
    return rows[shard[0] - 1 :: shard[1]]
