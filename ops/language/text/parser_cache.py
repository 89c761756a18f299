"""Cache of the parser's tables, which an entry point provides.

Lark derives them from the grammar in a tenth of a second; reading them takes a hundredth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from attrs import define


class ParserCache(Protocol):
    """Serialised tables by the facts that they follow from."""

    def get(self, facts: Mapping[str, str]) -> bytes | None:
        """Return the tables, None where there are none."""

    def put(self, facts: Mapping[str, str], tables: bytes) -> None:
        """Keep tables for later processes."""


@define
class _ProvidedCache:
    """The cache of this process."""

    cache: ParserCache | None = None


_PARSER_CACHE = _ProvidedCache()


def provide_parser_cache(cache: ParserCache) -> None:
    """Use a cache for parsers made from now on."""
    _PARSER_CACHE.cache = cache


def provided_parser_cache() -> ParserCache | None:
    """Return the cache of this process."""
    return _PARSER_CACHE.cache
