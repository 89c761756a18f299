"""Cubins that earlier versions stored.

Their files are `cubin/NAME`: the SHA-256 of the content as text, then the content. The name is the `digest_parts` of
words and source, so that only the reader of a kernel can know it. Entries of other kinds depend on the source digest of
the version that wrote them, which no later version has: eviction deletes them.
"""

from __future__ import annotations

from .entries import EntryStore
from .folder import set_aside
from .keys import digest

_DIGEST_BYTES = 64


def take_earlier(store: EntryStore, kind: str, name: str) -> bytes | None:
    """Return the content of an earlier entry and delete its file.

    None where it is missing or damaged.
    """
    if store.root is None:
        return None
    path = store.root / kind / name
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    content = raw[_DIGEST_BYTES:]
    if digest(content).encode() != raw[:_DIGEST_BYTES]:
        set_aside(path, store.root, "its digest does not fit its content")
        return None
    path.unlink(missing_ok=True)
    return content
