"""Loading of the vocabulary, and of models in all supported formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from attrs import evolve, field, frozen

from ..ir import (
    BackendError,
    Graph,
    GraphError,
    Interface,
    Source,
    TensorType,
    UsageError,
    install_command,
    quote,
    verify_graph,
)
from ..ops import Registry
from ..ops.language import Instances, provide_parser_cache
from ..ops.symbolic import ComputedSizes
from ..search import reduced_garbage_collection
from ..store import EntryStore, Key, digest


@runtime_checkable
class Message(Protocol):
    """A protocol buffer's message: of ONNX, a `ModelProto`."""

    def SerializeToString(self) -> bytes: ...


@runtime_checkable
class TorchModule(Protocol):
    """A module of PyTorch."""

    def forward(self, *args: Any, **kwargs: Any) -> Any: ...

    def state_dict(self) -> Any: ...


@runtime_checkable
class ExportedProgram(Protocol):
    """An exported program of PyTorch."""

    def run_decompositions(self, *args: Any, **kwargs: Any) -> Any: ...


ModelLike: TypeAlias = Graph | str | os.PathLike[str] | bytes | Message | TorchModule | ExportedProgram
Shapes: TypeAlias = Mapping[str, Sequence[int]]


@frozen
class Spec:
    """Vocabulary of one compilation: the built-in one and the user's declarations.

    The texts of these travel with the plan.
    """

    registry: Registry
    texts: Mapping[str, str] = field(factory=dict)

    @property
    def instances(self) -> Instances:
        """Instances of the vocabulary, shared by all callers."""
        return self.registry.instances

    @property
    def own(self) -> frozenset[str]:
        """The operations that the user declares."""
        return frozenset(self.registry) - frozenset(Registry.builtin())


#: Largest sizes of activations by name, or samples of a model's inputs, by name or in their order.
Calibration: TypeAlias = Mapping[str, float] | Sequence[Mapping[str, Any] | Sequence[Any]]


def quantise_model(graph: Graph, spec: Spec, weights: str, calibration: Calibration | None = None) -> Graph:
    """Return a canonical graph whose weights are rounded to a format.

    With a `calibration`, the activations that multiply them are rounded, too.

    Raises `UsageError` for an unknown format, or for an activation without a size.
    """
    from ..frontends import find_activations, find_weight_format, largest_sizes, quantise_activations, quantise_weights
    from ..passes.graph import Canonicalise

    format_ = find_weight_format(weights)
    pure = Canonicalise(spec.instances).run(evolve(graph, interface=Interface()))
    rounded = quantise_weights(pure, spec.instances, format_)
    if calibration is not None:
        uses = find_activations(pure, spec.instances)
        if not isinstance(calibration, Mapping):
            values = tuple(dict.fromkeys(value for each in uses.values() for value in each))
            samples = [_arrays_by_name(pure, sample) for sample in calibration]
            calibration = largest_sizes(pure, spec.registry, values, samples)
        rounded = quantise_activations(rounded, uses, format_, calibration)
    return evolve(rounded, interface=graph.interface)


def _arrays_by_name(graph: Graph, sample: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
    named = sample if isinstance(sample, Mapping) else dict(zip(graph.inputs, sample, strict=True))
    return {name: np.asarray(value) for name, value in named.items()}


@frozen
class _StoredParsers:
    """Tables of the parser as entries of the store."""

    def get(self, facts: Mapping[str, str]) -> bytes | None:
        return (EntryStore.open().get(self._key(facts)) or {}).get("tables")

    def put(self, facts: Mapping[str, str], tables: bytes) -> None:
        EntryStore.open().put(self._key(facts), {"tables": tables})

    def _key(self, facts: Mapping[str, str]) -> Key:
        return Key("parser", {**facts, "grammar": digest(facts["grammar"])}, label="cuts.lark")


provide_parser_cache(_StoredParsers())


def load_spec(paths: Sequence[str | os.PathLike[str]]) -> Spec:
    """Add the user's `.cuts` files or folders to the built-in vocabulary.

    Raises `UsageError` where a file cannot be read, or one file is given instead of a list.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise UsageError(
            f"'spec' is a list of files, found one: {os.fspath(paths)}", hint=f"give [{os.fspath(paths)!r}]"
        )
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.glob("*.cuts")) if path.is_dir() else [path]
    texts: dict[str, str] = {}
    for file in files:
        try:
            texts[str(file)] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read spec file {file}: {error}") from error
    return spec_of_texts(texts)


def spec_of_texts(texts: Mapping[str, str]) -> Spec:
    """Return the built-in vocabulary, extended by declarations in text form."""
    registry = Registry.builtin()
    return Spec(
        registry.extend(*(Source(name, text) for name, text in texts.items())) if texts else registry, dict(texts)
    )


def with_torch_operators(spec: Spec, model: ModelLike) -> Spec:
    """Return the vocabulary with the declarations that became PyTorch operators.

    PyTorch models may call these.
    """
    file = isinstance(model, (str, os.PathLike)) and os.fspath(model).lower().endswith(".pt2")
    archive = file and "torch" in sys.modules  # where PyTorch was not imported, there are none
    if not archive and not isinstance(model, (TorchModule, ExportedProgram)):
        return spec
    from ..frontends.torch import OPERATORS

    texts = dict(spec.texts)
    for name, operator in OPERATORS.items():
        texts |= {} if name in spec.registry else operator.texts
    return spec if texts == spec.texts else spec_of_texts(texts)


def is_torch_model(model: ModelLike) -> bool:
    """Return whether a model is one of PyTorch."""
    file = isinstance(model, (str, os.PathLike)) and os.fspath(model).lower().endswith(".pt2")
    return file or isinstance(model, (TorchModule, ExportedProgram))


@reduced_garbage_collection()  # the graph stays alive, so collections would only traverse it again
def load_model(
    model: ModelLike,
    spec: Spec,
    shapes: Shapes | None = None,
    args: Sequence[Any] = (),
    computed: ComputedSizes | None = None,
) -> Graph:
    """Return the graph of a model in any supported format.

    The model is a graph, an ONNX model in memory (`ModelProto`, or the bytes of a file), an exported program of
    PyTorch, a module with example inputs `args`, or the path of a file.

    A file is graph.json (`-` reads it from standard input), an ONNX model, or a `.pt2` of torch.export. Raises
    `UsageError` for example inputs of an object that is no module.
    """
    infer = spec.instances.infer
    _check_shapes(shapes or {})
    if isinstance(model, (TorchModule, ExportedProgram)):
        return _load_torch(model, spec, shapes or {}, args)
    if args:
        raise UsageError(f"'args' are example inputs of a PyTorch module, and the model is a {type(model).__name__}")
    if isinstance(model, Graph):
        _check_operations(model, spec)
        return _with_shapes(verify_graph(model, infer), spec, shapes or {})
    if not isinstance(model, (str, os.PathLike)):
        return _load_onnx(_check_model(model), spec, shapes or {}, computed)
    path = os.fspath(model)
    if path.lower().endswith(".onnx"):
        return _load_onnx(path, spec, shapes or {}, computed)
    if path.lower().endswith(".pt2"):
        return _load_torch(path, spec, shapes or {})
    from ..frontends import graph_from_json, load_graph

    graph = graph_from_json(sys.stdin.read(), os.getcwd(), infer) if path == "-" else load_graph(path, infer)
    return _with_shapes(graph, spec, shapes or {})


def _check_shapes(shapes: Shapes) -> None:
    """Raise where shapes are not given as extents by input."""
    if not isinstance(shapes, Mapping):
        raise UsageError(f"expected shapes by input name, found {type(shapes).__name__}", hint='give {"x": (1, 3)}')
    for name, shape in shapes.items():
        extents = None if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence) else tuple(shape)
        if extents is None or not all(isinstance(extent, Integral) for extent in extents):
            raise UsageError(
                f"shape of {quote(str(name))}: expected all extents of an input, found {shape!r}",
                hint="give the input's name with its whole shape, as in {'x': (1, 3, 224, 224)}; "
                "a name of a dim fixes nothing",
            )


def _check_operations(graph: Graph, spec: Spec) -> None:
    """Raise `GraphError` for an unknown operation whose node has the name of a known one."""
    for node in graph.nodes:
        if not node.declaration and node.op not in spec.registry and node.name in spec.registry:
            raise GraphError(
                f"node {quote(node.name)}: unknown op {quote(node.op)}, and the node has the name of an operation",
                hint=f"the order is Node(name, op, ...), as in Node({node.op!r}, {node.name!r}, ...)",
            )


def _check_model(model: object) -> Any:
    """Return a model in memory; raise for other objects, which an untyped caller may pass."""
    if isinstance(model, (bytes, Message)):
        return model
    raise UsageError(
        f"a model is a path, a graph, or an ONNX model (ModelProto or bytes), not "
        f"{type(model).__module__}.{type(model).__name__}",
        hint="of PyTorch, give a module with example inputs, or an exported program",
    )


def _load_onnx(model: Any, spec: Spec, shapes: Shapes, computed: ComputedSizes | None = None) -> Graph:
    try:
        from ..frontends.onnx import load_onnx
    except ImportError as error:
        name = model if isinstance(model, str) else "an ONNX model"
        raise BackendError(f"reading {name} needs the package onnx: {error}", hint=install_command("onnx")) from error
    fixed = {name: tuple(shape) for name, shape in shapes.items()}
    return load_onnx(model, fixed, spec.instances.infer, spec.own, computed)


def _load_torch(
    model: str | TorchModule | ExportedProgram, spec: Spec, shapes: Shapes, args: Sequence[Any] = ()
) -> Graph:
    if isinstance(model, str) and not Path(model).is_file():
        raise GraphError(f"{model}: no such file")
    try:
        from ..frontends.torch import read_torch
    except ImportError as error:
        name = model if isinstance(model, str) else f"a {type(model).__name__}"
        raise BackendError(f"reading {name} needs PyTorch: {error}", hint=install_command("torch")) from error
    graph = read_torch(model, args, spec.instances.infer)
    check_fixed_shapes({name: graph.types[name] for name in graph.interface.caller_inputs(graph.inputs)}, shapes)
    return graph


def check_fixed_shapes(inputs: Mapping[str, TensorType], shapes: Shapes) -> None:
    """Raise `UsageError` for other shapes of an exported program's inputs."""
    changed = [name for name, shape in shapes.items() if name not in inputs or inputs[name].shape != tuple(shape)]
    if changed:
        known = ", ".join(f"{name}={'x'.join(map(str, type_.shape))}" for name, type_ in inputs.items())
        raise UsageError(f"--shape {changed[0]}: an exported program has fixed shapes", hint=f"inputs are: {known}")


def _with_shapes(graph: Graph, spec: Spec, shapes: Shapes) -> Graph:
    """Return the graph with other input shapes, and every other type derived again."""
    from ..frontends import infer_types

    unknown = [name for name in shapes if name not in graph.inputs]
    if unknown:
        raise UsageError(
            f"--shape names {quote(unknown[0])}, which is no input",
            hint=f"inputs are: {', '.join(map(quote, graph.inputs)) or 'none'}",
        )
    if all(tuple(shape) == graph.types[name].shape for name, shape in shapes.items()):
        return graph
    types = {name: graph.types[name] for name in (*graph.inputs, *graph.constants)}
    types |= {name: TensorType(graph.types[name].dtype, tuple(shape)) for name, shape in shapes.items()}
    infer = spec.instances.infer
    bare = evolve(graph, types=types)
    return verify_graph(evolve(bare, types=infer_types(bare, infer)), infer)
