"""ONNX models as graphs: `load_onnx("model.onnx", shapes={"x": (1, 3, 224, 224)})`.

Reading is in `onnx_model`, the walk in `onnx_importer`, and what each ONNX operation means in our vocabulary in the tables
`onnx_elementwise`, `onnx_contraction`, `onnx_window`, `onnx_reduction`, `onnx_movement` and `onnx_resize`. Only these import `onnx`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from ..ir.errors import CutsError, GraphError, raise_all
from ..ir.graph import Graph
from ..ir.verify_graph import Infer, quote, verify_graph
from ..ops.inference import default_inference
from . import (
    onnx_contraction,
    onnx_elementwise,
    onnx_indirect,
    onnx_movement,
    onnx_quantised,
    onnx_recurrent,
    onnx_reduction,
    onnx_resize,
    onnx_sampling,
    onnx_signal,
    onnx_window,
)
from .onnx_call import Convert
from .onnx_importer import Importer, all_names, live_graph
from .onnx_model import Model, initialisers, input_types, read_model

TABLE: dict[str, Convert] = {
    **onnx_elementwise.TABLE,
    **onnx_contraction.TABLE,
    **onnx_window.TABLE,
    **onnx_reduction.TABLE,
    **onnx_movement.TABLE,
    **onnx_resize.TABLE,
    **onnx_recurrent.TABLE,
    **onnx_indirect.TABLE,
    **onnx_signal.TABLE,
    **onnx_quantised.TABLE,
    **onnx_sampling.TABLE,
}


def load_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    infer: Infer | None = None,
) -> Graph:
    """Return the graph of an ONNX model; `shapes` fixes dynamic input shapes, all unsupported operations are reported at once."""
    model = read_model(source if isinstance(source, (bytes, onnx.ModelProto)) else Path(source))
    constants = initialisers(model)
    inputs = input_types(model, constants, shapes or {})
    derive = infer or default_inference()
    outputs = tuple(value.name for value in model.graph.output)
    importer = Importer(TABLE, derive, model.opset, model.folder, frozenset(outputs), reserved=all_names(model.graph))
    importer.define_constants(constants)
    for name, type_ in inputs.items():
        importer.define_input(name, type_)
    importer.run(model.graph.node)
    raise_all(_faults(importer, model))
    missing = [name for name in outputs if name not in importer.types]
    raise_all([GraphError(f"{model.name}: output {quote(name)} is a value that nothing defines") for name in missing])
    return verify_graph(live_graph(importer, model.graph.name, tuple(inputs), outputs), derive)


def _faults(importer: Importer, model: Model) -> list[CutsError]:
    """Return what went wrong: one error that lists unsupported operations, then the others in order."""
    faults: list[CutsError] = []
    if importer.unsupported:
        parts = []
        for op, names in sorted(importer.unsupported.items()):
            shown = ", ".join(map(quote, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            parts.append(f"{op} (node{'s' * (len(names) > 1)} {shown})")
        count = len(parts)
        message = f"{model.name}: {count} operation{'s are' if count > 1 else ' is'} not supported: {'; '.join(parts)}"
        faults.append(GraphError(message, hint="declare them in a .cuts file or change the export"))
    return faults + [GraphError(f"{model.name}: {error.message}", hint=error.hint) for error in importer.errors]
