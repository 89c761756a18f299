"""JSON document of a cluster plan, with its predicted times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from ...ir import PlanError, UsageError, atomic_write
from .descriptions import Machine
from .files import structure
from .transformer import Transformer
from .ways import Way

FORMAT, VERSION = "cuts.cluster.plan", 1


@frozen
class ClusterPlan:
    """Model, cluster, way, and predicted parts of the time in seconds."""

    model: Transformer
    machine: Machine
    way: Way
    training: bool
    predicted: Mapping[str, float] = field(factory=dict)


def save_cluster_plan(plan: ClusterPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan atomically.

    Raises `UsageError` where it cannot be written.
    """
    document = {"format": FORMAT, "version": VERSION, **asdict(plan)}
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load_cluster_plan(path: str | os.PathLike[str]) -> ClusterPlan:
    """Read a plan.

    Raises `UsageError` where there is none, `PlanError` where it is damaged or of another version.
    """
    try:
        document: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: expected a plan as JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != VERSION:
        raise PlanError(
            f"{path}: expected format '{FORMAT}', version {VERSION}",
            hint="write one with: cuts plan MODEL CLUSTER -o plan.json",
        )
    parts: dict[str, Any] = {}
    for name, kind in (("model", Transformer), ("machine", Machine), ("way", Way)):
        if not isinstance(document.get(name), dict):
            raise PlanError(f"{path}: {name}: expected an object, found {document.get(name)!r}")
        values = {key: value for key, value in document[name].items() if value is not None}
        parts[name] = structure(values, kind, f"{path}: {name}")
    if not isinstance(document.get("training"), bool):
        raise PlanError(f"{path}: training: expected true or false, found {document.get('training')!r}")
    known = {"format", "version", "model", "machine", "way", "training", "predicted"}
    if extra := [key for key in document if key not in known]:
        raise PlanError(f"{path}: unknown key '{extra[0]}'", hint=f"keys are: {', '.join(sorted(known))}")
    return ClusterPlan(**parts, training=document["training"], predicted=dict(document.get("predicted") or {}))
