"""Importer of a PyTorch model: archive, exported program or module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ....ir import Graph, Infer, UsageError
from .archive import load_archive
from .load import export_module, graph_of_export


def read_torch(model: Any, args: Sequence[Any] = (), infer: Infer | None = None) -> Graph:
    """Return the graph of a model of `exported_program`; weights are constants."""
    program = exported_program(model, args)
    return graph_of_export(program, infer, program_name(model))


def program_name(model: Any) -> str:
    """Return the name of a model's graph: that of its file."""
    return Path(model).stem if isinstance(model, (str, os.PathLike)) else "torch"


def exported_program(model: Any, args: Sequence[Any] = ()) -> torch.export.ExportedProgram:
    """Return the exported program of a PyTorch model.

    The model is the path of an archive, an exported program, or a module with example inputs `args`.

    Raises `UsageError` where a module comes without example inputs, or anything else with some.
    """
    if isinstance(model, torch.nn.Module):
        if not isinstance(args, (tuple, list)) or not args:
            found = "none" if isinstance(args, (tuple, list)) else type(args).__name__
            raise UsageError(
                f"a PyTorch module needs a tuple of example inputs, found {found}",
                hint="cuts.build(module, (x,)) takes the shapes from them",
            )
        return export_module(model, args)
    if args:
        raise UsageError("'args' are example inputs of a module; an exported program has its shapes")
    if isinstance(model, torch.export.ExportedProgram):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load_archive(Path(model))
    raise UsageError(f"expected a module or an exported program of PyTorch, found {type(model).__name__}")
