"""Source positions of values in a JSON text.

The decoder keeps no positions. Each step down a path decodes the members of one object or list with the standard
decoder and notes their bounds, so a position costs about as much as decoding the text that precedes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

#: A step of a path: the key of an object's member, or the position in a list.
Step: TypeAlias = str | int
#: Offsets of a value's begin and end.
Place: TypeAlias = tuple[int, int]

_SPACE = re.compile(r"[ \t\n\r]*")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<number>\d+)\]|\[(?P<quote>['\"])(?P<key>.*?)(?P=quote)\]")
_DECODER = json.JSONDecoder()


def steps_of(path: str) -> tuple[Step, ...]:
    """Return the steps of a path as messages write it: `$.nodes[3].attributes['k']`."""
    return tuple(int(m["number"]) if m["number"] else m["name"] or m["key"] for m in _STEP.finditer(path))


def place_of(text: str, path: Sequence[Step]) -> Place:
    """Return the position of the value at a path of valid JSON.

    Where the path leaves the document, this is the position of the innermost value around it.
    """
    found = _value_at(text, _skip(text, 0))
    for step in path:
        inner = [place for name, place in members(text, found[0]) if name == step]
        if not inner:
            return found
        found = inner[-1]  # the decoder takes the last of equal keys
    return found


def places_below(text: str, path: Sequence[Step], member: Step) -> list[Place]:
    """Return the positions of a member of each listed object.

    `path` leads to the list.
    """
    return [dict(members(text, start))[member] for _, (start, _) in members(text, place_of(text, path)[0])]


def members(text: str, start: int) -> Iterator[tuple[Step, Place]]:
    """Yield the members of an object or list with their positions.

    The value begins at offset `start`; a scalar has no members.
    """
    closing = {"{": "}", "[": "]"}.get(text[start])
    at, number = _skip(text, start + 1), 0
    while closing is not None and text[at] != closing:
        name: Step = number
        if closing == "}":
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        place = _value_at(text, at)
        yield name, place
        number += 1
        at = _skip(text, place[1])
        at = _skip(text, at + 1) if text[at] == "," else at


def _value_at(text: str, start: int) -> Place:
    return start, _DECODER.raw_decode(text, start)[1]


def _skip(text: str, at: int) -> int:
    """Return the first offset from `at` on that is no white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at
