"""Cache of fitted models between processes: arrays and JSON.

It lies in the store. Fitting takes half a minute to a minute, prediction none. The key consists of everything that the
model follows from: the profile's bytes, this package's source, the versions of the libraries that fit, and the name of
the fit. An entry holds numbers and names alone, nothing that runs.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

from ..ir import BackendError, install_command
from ..store import EntryStore, Key

_LOG = logging.getLogger(__name__)
_FITTED_BY = ("numpy", "scipy", "scikit-learn")


def cached_fit(parts: tuple[str, ...], fit: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the result of `fit` from the cache, or fit.

    The result has arrays and JSON values by name. `parts` are the key: a digest of the data, and words for the fit.
    """
    store, key = EntryStore.open(), Key("fit", {"parts": list(parts)}, options=_versions(), label=parts[1])
    known = _unpack(store.get(key))
    if known is not None:
        return known
    _LOG.info("fitting the model '%s' to the profile; it is kept for the next time", parts[1])
    found = fit()
    store.put(key, {"model": _pack(found)})
    return found


def _pack(values: Mapping[str, Any]) -> bytes:
    arrays = {name: each for name, each in values.items() if isinstance(each, np.ndarray)}
    rest = json.dumps({name: each for name, each in values.items() if name not in arrays})
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays, json=np.frombuffer(rest.encode(), np.uint8))
    return file.getvalue()


def _unpack(entry: Mapping[str, bytes] | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    try:
        with np.load(io.BytesIO(entry["model"]), allow_pickle=False) as file:
            found: dict[str, Any] = {name: file[name] for name in file.files}
        found |= json.loads(found.pop("json").tobytes())
    except (OSError, ValueError, KeyError, EOFError):
        return None  # written by another program: fitted again
    return found


@cache
def _versions() -> dict[str, str]:
    try:
        return {name: metadata.version(name) for name in _FITTED_BY}
    except metadata.PackageNotFoundError as error:
        raise BackendError(
            f"latency models need {error.name}, which is not installed", hint=install_command("latency")
        ) from error
