"""A model's folder: weights and the optimiser's values of every layer, in two generations, and how far training has
come.

A step reads one generation and writes the other. When all of it is on the disk, `progress.json` names the new one, by
an atomic rename. So whenever a process ends, what `progress.json` names is whole, and training goes on from there.

    model.json                       what the folder was made for
    progress-STAGE.json              finished steps
    weights-G/layer-003.safetensors  parameters after an even (G = 0) or odd number of steps
    mean-G/, square-G/               the optimiser's values
    gradients/, activations-STAGE/   what a step moves out of memory meanwhile
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
from attrs import asdict, frozen

from ..backends import Array
from ..ir import PlanError
from .blocks import parameter_shapes
from .describe import Transformer
from .layer_files import FileLayout, check, create, layout, storage_error

#: What is kept of each parameter, besides gradients.
STATE = ("mean", "square")


@frozen
class LayerStore:
    """The folder of one data-parallel group; stages have different layers of it."""

    folder: Path
    model: Transformer
    weights: FileLayout

    @property
    def elements(self) -> int:
        """Elements of a layer's file, what fills it up among them: that stays zero whatever is computed of it."""
        return self.weights.nbytes // 4

    def path(self, kind: str, layer: int, generation: int = 0) -> Path:
        """Return where a kind of a layer's values lies."""
        folder = kind if kind == "gradients" else f"{kind}-{generation}"
        return self.folder / folder / f"layer-{layer:03}.safetensors"

    def scratch(self, stage: int, kind: str) -> Path:
        """Return the file that a stage moves activations to."""
        return self.folder / f"activations-{stage}" / f"{kind}.bin"

    def steps(self, stage: int) -> int:
        """Return how many steps a stage has finished. Raises `PlanError` where the file that says so is damaged."""
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
        """Say that a stage has finished so many steps; what they wrote must be on the disk."""
        _replace(self.folder / f"progress-{stage}.json", json.dumps({"steps": steps}))


def open_store(
    folder: str | os.PathLike[str], model: Transformer, layers: list[int], *, training: bool, seed: int = 0
) -> LayerStore:
    """Open a model's folder, or make it with random weights; raise `PlanError` where it is another model's or
    damaged.
    """
    store = LayerStore(Path(folder), model, layout(parameter_shapes(model)))
    marker = store.folder / "model.json"
    described = json.dumps(asdict(model), indent=1)
    if marker.exists() and marker.read_text(encoding="utf-8") != described:
        raise PlanError(f"{folder}: holds another model than {model.name}", hint="name another folder: --folder DIR")
    for layer in layers:
        _open_layer(store, layer, training, seed)
    if not marker.exists():
        _replace(marker, described)
    return store


def _open_layer(store: LayerStore, layer: int, training: bool, seed: int) -> None:
    first = store.path("weights", layer)
    if not first.exists():
        if (store.folder / "model.json").exists() and (store.folder / "progress-0.json").exists():
            raise PlanError(f"{first}: is missing", hint="restore it, or begin again in another folder")
        draft = first.with_name(f"{first.name}.new")
        create(draft, store.weights)
        _fill(draft, store.weights, initial_weights(store.model, layer, seed))
        os.replace(draft, first)
    check(first, store.weights)
    wanted = [("weights", 1), *((kind, g) for kind in STATE for g in (0, 1)), ("gradients", 0)] if training else []
    for kind, generation in wanted:
        path = store.path(kind, layer, generation)
        if not path.exists():
            create(path, store.weights)
        check(path, store.weights)


def _fill(path: Path, made: FileLayout, arrays: dict[str, Array]) -> None:
    try:
        with path.open("r+b") as file:
            for name, array in arrays.items():
                file.seek(made.start + made.offsets[name])
                file.write(array.tobytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(error, path, made.file_bytes) from error


def initial_weights(model: Transformer, layer: int, seed: int) -> dict[str, Array]:
    """Return random parameters of a block: matrices of the usual deviation, smaller where results join the residual
    stream.
    """
    generator = np.random.default_rng([seed, layer])
    found: dict[str, Array] = {}
    for name, shape in parameter_shapes(model).items():
        if len(shape) == 2:
            deviation = 1 / math.sqrt(shape[0]) / (math.sqrt(2 * model.layers) if name in ("output", "down") else 1)
            found[name] = (generator.standard_normal(shape, np.float32) * np.float32(deviation)).astype(np.float32)
        else:
            found[name] = np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
    return found


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
