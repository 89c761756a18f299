"""Importer of a PyTorch model: archive, exported program or module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...ir import Graph, Infer, UsageError
from .archive import load_archive
from .load import graph_of_export, load_torch


def read_torch(model: Any, args: Sequence[Any] = (), infer: Infer | None = None) -> Graph:
    """Return the graph of a PyTorch model.

    The model is the path of an archive, an exported program, or a module with example inputs `args`.

    Raises `UsageError` where a module comes without example inputs, or anything else with some.
    """
    if isinstance(model, torch.nn.Module):
        if not isinstance(args, (tuple, list)) or not args:
            raise UsageError(
                f"a PyTorch module needs a tuple of example inputs, found {type(args).__name__}",
                hint="cuts.build(module, (x,)) takes the shapes from them",
            )
        return load_torch(model, args, infer=infer)
    if args:
        raise UsageError("'args' are example inputs of a module; an exported program has its shapes")
    if isinstance(model, torch.export.ExportedProgram):
        return graph_of_export(model, infer)
    if isinstance(model, (str, os.PathLike)):
        return load_archive(Path(model), infer)
    raise UsageError(f"expected a module or an exported program of PyTorch, found {type(model).__name__}")
