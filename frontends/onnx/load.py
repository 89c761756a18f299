"""ONNX models as graphs: `load_onnx("model.onnx", shapes={"x": (1, 3, 224, 224)})`.

`model` decodes, `importer` traverses, and `operators` has the conversion of each operation.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx
from attrs import evolve

from ...ir import (
    Array,
    CutsError,
    Graph,
    GraphError,
    Infer,
    Interface,
    VocabularyError,
    live_graph,
    quote,
    raise_all,
    verify_graph,
)
from ...ops.language import Registry
from ...ops.symbolic import ComputedSizes
from .importer import Importer, all_names
from .operators import SELECTIONS, TABLE
from .protos import OnnxModel, Opaque, initialisers, input_types, read_model, unsupported_hint
from .subgraphs import STRUCTURES


def load_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    infer: Infer | None = None,
    declared: Collection[str] = (),
    computed: ComputedSizes | None = None,
) -> Graph:
    """Return the graph of an ONNX model.

    `shapes` fixes dynamic input shapes. All unsupported operations are reported at once. A node whose operation has a
    name in `declared` becomes the operation of that name: operands by position, attributes by name. With `computed`,
    results may have numbers of rows that depend on values: the graph is the one at a sample of them.
    """
    model = read_model(source if isinstance(source, (bytes, onnx.ModelProto)) else Path(source))
    derive = infer or Registry.builtin().instances.infer
    return _graph(_import_model(model, shapes or {}, {}, derive, declared, computed), model, derive)


def load_onnx_for(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    arrays: Mapping[str, Array],
    infer: Infer | None = None,
    declared: Collection[str] = (),
    fixable: Collection[str] | None = None,
) -> tuple[Graph, dict[str, Array]]:
    """Return a model's graph for inputs, and the inputs that specialise it.

    Inputs that select statically (a shape, axes, a condition), or are empty, become constants; they are no inputs of
    the graph. Only those in `fixable` do, where it is given.
    """
    model = read_model(source if isinstance(source, (bytes, onnx.ModelProto)) else Path(source))
    derive = infer or Registry.builtin().instances.infer
    known = {name: array for name, array in arrays.items() if array.size == 0}
    while True:
        shapes = {name: array.shape for name, array in arrays.items() if name not in known}
        importer = _import_model(model, shapes, known, derive, declared)
        more = {name: arrays[name] for name in importer.wanted if name in arrays and name not in known}
        more = {name: array for name, array in more.items() if fixable is None or name in fixable}
        if not more:
            return _graph(importer, model, derive), known
        known |= more


def _import_model(
    model: OnnxModel,
    shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, Array],
    infer: Infer,
    declared: Collection[str],
    computed: ComputedSizes | None = None,
) -> Importer:
    """Import a model's nodes; `known` gives values of inputs."""
    weights = initialisers(model)
    inputs = input_types(model, {**weights, **known}, shapes)
    outputs = frozenset(value.name for value in model.graph.output)
    table = TABLE if computed is None else {**TABLE, **SELECTIONS}
    importer = Importer(
        table, STRUCTURES, infer, model.opset, model.folder, outputs, reserved=all_names(model.graph), declared=declared
    )
    importer.computed = computed
    importer.define_constants({name: array for name, array in weights.items() if name not in known})
    importer.define_given(known)
    for name, type_ in inputs.items():
        importer.define_input(name, type_)
    importer.inputs = tuple(inputs)
    importer.import_all(model.graph.node)
    return importer


def _graph(importer: Importer, model: OnnxModel, infer: Infer) -> Graph:
    """Return the graph of a finished import, or raise its errors."""
    faults = _faults(importer, model)
    if faults and all(isinstance(error, Opaque) for error in importer.errors):
        raise VocabularyError(faults, tuple(importer.refused))
    raise_all(faults)
    outputs = tuple(value.name for value in model.graph.output)
    lists = [name for name in outputs if name in importer.sequences]
    if lists:
        raise VocabularyError(
            [GraphError(f"{model.name}: output {quote(name)} is a sequence of tensors") for name in lists], lists
        )
    missing = [name for name in outputs if name not in importer.types]
    raise_all([GraphError(f"{model.name}: output {quote(name)} is a value that nothing defines") for name in missing])
    computed = importer.computed or ComputedSizes()
    inputs, results = computed.ends(importer.inputs, outputs)
    whole = Graph(model.graph.name, inputs, results, importer.types, tuple(importer.nodes), importer.constants)
    interface = Interface(producers=tuple(computed.producers))
    return verify_graph(live_graph(evolve(whole, interface=interface)), infer)


def _faults(importer: Importer, model: OnnxModel) -> list[CutsError]:
    """Return the errors: one that lists unsupported operations, then the others in order."""
    faults: list[CutsError] = []
    if importer.unsupported:
        parts = []
        for op, names in sorted(importer.unsupported.items()):
            shown = ", ".join(map(quote, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            parts.append(f"{op} (node{'s' * (len(names) > 1)} {shown})")
        count = len(parts)
        message = f"{model.name}: {count} operation{'s are' if count > 1 else ' is'} not supported: {'; '.join(parts)}"
        usual = "declare them in a .cuts file, or let them run uncompiled: cuts.build_staged"
        faults.append(
            GraphError(
                message,
                hint=next((h for op in importer.unsupported if (h := unsupported_hint(op, usual)) != usual), usual),
            )
        )
    return faults + [GraphError(f"{model.name}: {error.message}", hint=error.hint) for error in importer.errors]
