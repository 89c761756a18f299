"""Facts as lines of aligned names and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .output import brief, size

#: Longest value on a line.
MAX_VALUE_COLUMNS = 1000
_INDENT = "  "


def outline(facts: Mapping[str, object]) -> Iterator[str]:
    """Yield lines of padded names and values; nested facts are indented."""
    width = max(map(len, facts), default=0) + len(_INDENT)
    for name, value in facts.items():
        parts = [value] if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
        if parts and all(isinstance(part, Mapping) for part in parts):
            yield name
            for number, part in enumerate(parts):
                yield from [""] if number else []
                yield from (f"{_INDENT}{line}" for line in outline(part))
            continue
        lines = [_text(name, part) for part in parts] or [_text(name, value)]
        yield f"{name:<{width}}{lines[0]}".rstrip()
        yield from (f"{'':<{width}}{line}" for line in lines[1:])


def _text(name: str, value: object) -> str:
    """Return a value as text, numbers of bytes in a unit that suits them."""
    if isinstance(value, int) and (name.endswith("bytes") or name in ("limit", "max_allocation")):
        return size(value)
    return "-" if value in (None, "", (), [], {}) else brief(value, MAX_VALUE_COLUMNS)
