"""Folder of a model: layers' weights and optimiser state, and training progress.

The values of every layer are in two generations. A step reads one generation and writes the other. When all of it is on
the disk, `progress.json` names the new one, by an atomic rename. So after an interruption, the generation in
`progress.json` is complete, and training resumes from it.

    model.json                       the model of the folder
    host-LAYER.json                  another folder, in host memory or on a faster disk, and its layers
    progress-STAGE.json              finished steps
    weights-G/layer-003.safetensors  parameters after an even (G = 0) or odd number of steps
    mean-G/, square-G/               the optimiser's values; in mixed precision master-G/, the parameters in fp32
    gradients/, activations-STAGE/   values that a step moves out of memory meanwhile
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import numpy as np
from attrs import asdict, evolve, frozen

from ...backends import Array
from ...ir import DType, PlanError
from ..graphs import initial_weights, layer_kind, parameter_shapes, partition_parameter
from ..plans import Transformer
from .layer_files import FileLayout, check, create, layout, storage_error


def state_kinds(model: Transformer) -> tuple[str, ...]:
    """Return the kinds of optimiser state, by the names of the files."""
    return ("mean", "square", "master") if model.precision == "mixed" else ("mean", "square")


@frozen
class HostFolder:
    """Second folder, in host memory (tmpfs) or on a faster disk.

    It has all files of its `layers`.
    """

    folder: Path
    layers: frozenset[int]


@frozen
class LayerStore:
    """Folder of one data-parallel group, or of one of its GPUs.

    GPUs that share layers have a folder each; stages have different layers of it. `weights` are the layouts of weights
    and gradients in the files of each kind of layer, `state` those of the optimiser's values.
    """

    folder: Path
    model: Transformer
    weights: Mapping[str, FileLayout]
    state: Mapping[str, FileLayout]
    part: int = 0
    parts: int = 1
    host: HostFolder | None = None

    @classmethod
    def describe(cls, folder: Path, model: Transformer, part: int = 0, parts: int = 1) -> Self:
        """Return the store of a folder, which is not looked at."""
        kinds = ("block", "embedding", "head") if model.vocabulary else ("block",)
        shapes = {kind: parameter_shapes(model, parts, kind) for kind in kinds}
        weights, state = (
            {kind: layout(shapes[kind], dtype, model.dtype) for kind in kinds} for dtype in (model.dtype, DType.F32)
        )
        return cls(folder, model, weights, state, part, parts)

    def elements(self, layer: int) -> int:
        """Return the elements of a layer's file with its padding.

        The padding stays zero in all computations.
        """
        return self.layout("weights", layer).nbytes // self.model.dtype.size

    def layout(self, kind: str, layer: int) -> FileLayout:
        """Return the file layout of a kind of a layer's values."""
        return (self.state if kind in state_kinds(self.model) else self.weights)[layer_kind(self.model, layer)]

    def path(self, kind: str, layer: int, generation: int = 0) -> Path:
        """Return the file of a kind of a layer's values."""
        folder = kind if kind == "gradients" else f"{kind}-{generation}"
        root = self.host.folder if self.host and layer in self.host.layers else self.folder
        return root / folder / f"layer-{layer:03}.safetensors"

    def paths(self, layer: int, *, training: bool) -> list[Path]:
        """Return the files of a layer, the first weights first."""
        kinds = [(kind, number) for kind in ("weights", *state_kinds(self.model)) for number in (0, 1)]
        wanted = [*kinds, ("gradients", 0)] if training else [("weights", 0)]
        return [self.path(kind, layer, number) for kind, number in wanted]

    def layer_bytes(self, layer: int, *, training: bool) -> int:
        """Return the bytes of all files of a layer."""
        weights, state = (self.layout(kind, layer).file_bytes for kind in ("weights", "mean"))
        return 3 * weights + 2 * len(state_kinds(self.model)) * state if training else weights

    def parameters(self, layer: int, generation: int) -> dict[str, Array]:
        """Return a layer's parameters of a generation, from its file."""
        made, path = self.layout("weights", layer), self.path("weights", layer, generation)
        values = np.fromfile(path, made.dtype.numpy, offset=made.start)
        width = made.dtype.size
        begins = {name: made.offsets[name] // width for name in made.shapes}
        return {name: values[begins[name] :][: math.prod(shape)].reshape(shape) for name, shape in made.shapes.items()}

    def scratch(self, stage: int, kind: str) -> Path:
        """Return the file that a stage moves activations to."""
        return self.folder / f"activations-{stage}" / f"{kind}.bin"

    def steps(self, stage: int) -> int:
        """Return the number of steps that a stage has finished.

        Raises `PlanError` where its file is damaged.
        """
        path = self.folder / f"progress-{stage}.json"
        if not path.exists():
            return 0
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["steps"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PlanError(f"{path}: expected the number of finished steps: {error}") from error
        if not isinstance(found, int) or found < 0:
            raise PlanError(f"{path}: expected the number of finished steps, found {found!r}")
        return found

    def finish(self, stage: int, steps: int) -> None:
        """Record the finished steps of a stage.

        Their values must be on the disk.
        """
        _replace(self.folder / f"progress-{stage}.json", json.dumps({"steps": steps}))


def open_store(
    folder: str | os.PathLike[str],
    model: Transformer,
    layers: list[int],
    *,
    training: bool,
    seed: int = 0,
    part: int = 0,
    parts: int = 1,
    weights: Callable[[int], Mapping[str, Array]] | None = None,
    host: tuple[str | os.PathLike[str], float] | None = None,
) -> LayerStore:
    """Open a model's folder, or make it.

    `host` is a second folder with its bytes: it takes the files of as many layers, spread evenly over the model so that
    both move at once. A folder that has one keeps it.

    It begins with the `weights` of each layer, or with random ones. Raises `PlanError` where it is another model's or
    damaged.
    """
    store = LayerStore.describe(Path(folder), model, part, parts)
    if store.folder.exists() and not store.folder.is_dir():
        raise PlanError(f"{folder}: expected a folder, found a file", hint="name another: --folder DIR")
    marker = store.folder / "model.json"
    described = json.dumps(asdict(model), indent=1)
    if marker.exists() and marker.read_text(encoding="utf-8") != described:
        raise PlanError(f"{folder}: holds another model than {model.name}", hint="name another folder: --folder DIR")
    store = evolve(store, host=_open_host(store, layers, training, host))
    for layer in layers:
        _open_layer(store, layer, training, weights or (lambda number: initial_weights(model, number, seed)))
    if not marker.exists():
        _replace(marker, described)
    return store


def _open_host(
    store: LayerStore, layers: list[int], training: bool, host: tuple[str | os.PathLike[str], float] | None
) -> HostFolder | None:
    """Return the second folder of a store: the one that it has, else a new one where it is asked for."""
    path = store.folder / f"host-{layers[0]}.json"
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return HostFolder(Path(found["folder"]), frozenset(found["layers"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PlanError(f"{path}: expected a folder and its layers: {error}") from error
    if host is None or (store.folder / "model.json").exists():
        return None
    folder, room = Path(os.path.abspath(host[0])), host[1]
    share = min(1.0, room / sum(store.layer_bytes(layer, training=training) for layer in layers))
    chosen = [layer for place, layer in enumerate(layers) if int((place + 1) * share) > int(place * share)]
    _replace(path, json.dumps({"folder": str(folder), "layers": chosen}))
    return HostFolder(folder, frozenset(chosen))


def _open_layer(store: LayerStore, layer: int, training: bool, weights: Callable[[int], Mapping[str, Array]]) -> None:
    first, state = store.path("weights", layer), state_kinds(store.model)
    if not first.exists():
        if (store.folder / "model.json").exists() and (store.folder / "progress-0.json").exists():
            raise PlanError(f"{first}: is missing", hint="restore it, or begin again in another folder")
        arrays = {
            name: partition_parameter(name, array, store.part, store.parts) for name, array in weights(layer).items()
        }
        # Weights come last: a layer whose weights are there has all that it began with.
        for path in [store.path(kind, layer) for kind in ("master",) if training and kind in state] + [first]:
            made = store.layout(path.parent.name.partition("-")[0], layer)
            draft = path.with_name(f"{path.name}.new")
            create(draft, made)
            _fill(draft, made, arrays)
            os.replace(draft, path)
    check(first, store.layout("weights", layer))
    for path in store.paths(layer, training=training)[1:]:
        made = store.layout(path.parent.name.partition("-")[0], layer)
        if not path.exists():
            create(path, made)
        check(path, made)


def _fill(path: Path, made: FileLayout, arrays: dict[str, Array]) -> None:
    try:
        with path.open("r+b") as file:
            for name, array in arrays.items():
                file.seek(made.start + made.offsets[name])
                file.write(array.astype(made.dtype.numpy).tobytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(error, path, made.file_bytes) from error


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")  # stages share the folder
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise storage_error(error, path, len(text)) from error
