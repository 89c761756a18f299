"""Cache of fitted models between processes: arrays and JSON.

It lies in the user's cache. Fitting takes half a minute to a minute, prediction none. The key consists of all that the
model follows from: the profile's bytes, this package's source, the versions of the libraries that fit, and the name of
the fit. It holds numbers and names alone, nothing that runs, and lies in a folder that only its owner can write
(`backends/cache.py`).
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata, resources
from typing import Any

import numpy as np

from ..backends import KernelStore, cache_key

_LOG = logging.getLogger(__name__)
_FITTED_BY = ("numpy", "scipy", "scikit-learn")


def cached_fit(parts: tuple[str, ...], fit: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the result of `fit` from the cache, or fit.

    The result has arrays and JSON values by name. `parts` are the key: a digest of the data, and words for the fit.
    """
    store, key = KernelStore.open("latency"), cache_key((*parts, *_versions(), *_sources()))
    known = _unpack(store.get(key))
    if known is not None:
        return known
    _LOG.info("fitting the model '%s' to the profile; it is kept for the next time", parts[1])
    found = fit()
    store.put(key, _pack(found))
    return found


def _pack(values: Mapping[str, Any]) -> bytes:
    arrays = {name: each for name, each in values.items() if isinstance(each, np.ndarray)}
    rest = json.dumps({name: each for name, each in values.items() if name not in arrays})
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays, json=np.frombuffer(rest.encode(), np.uint8))
    return file.getvalue()


def _unpack(content: bytes | None) -> dict[str, Any] | None:
    if content is None:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found: dict[str, Any] = {name: file[name] for name in file.files}
        found |= json.loads(found.pop("json").tobytes())
    except (OSError, ValueError, KeyError, EOFError):
        return None  # written by another program: fitted again
    return found


@cache
def _sources() -> tuple[bytes, ...]:
    """Return the text of this package's modules, which the fit depends on."""
    files = sorted(resources.files(__package__).iterdir(), key=lambda each: each.name)
    return tuple(file.read_bytes() for file in files if file.name.endswith(".py"))


@cache
def _versions() -> tuple[str, ...]:
    return tuple(f"{name} {metadata.version(name)}" for name in _FITTED_BY)
