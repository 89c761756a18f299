"""Checkpoints of other programs as safetensors files.

There is one file, or several with an index, as Hugging Face models have them. A layer's tensors are found by names;
matrices of linear layers are transposed there, and some lie side by side. The names are those of Llama, Mistral and
Qwen, or of GPT-2.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from ...backends import Array
from ...ir import DType, PlanError, atomic_write
from ..graphs import layer_kind, parameter_shapes
from ..plans import Transformer


@frozen
class TensorName:
    """Tensor of a parameter: name, order, and part of the last axis."""

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1


def _linear(name: str, path: str) -> dict[str, TensorName]:
    return {name: TensorName(f"{path}.weight", True), f"{name}.bias": TensorName(f"{path}.bias")}


def _norm(name: str, path: str) -> dict[str, TensorName]:
    return {name: TensorName(f"{path}.weight"), f"{name}.bias": TensorName(f"{path}.bias")}


def _forward(name: str, path: str, part: int = 0, parts: int = 1) -> dict[str, TensorName]:
    """Return a matrix and its bias that are stored as they are used."""
    return {
        name: TensorName(f"{path}.weight", False, part, parts),
        f"{name}.bias": TensorName(f"{path}.bias", False, part, parts),
    }


_LLAMA_LAYERS = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "output": "self_attn.o_proj",
    "up": "mlp.up_proj", "gate": "mlp.gate_proj", "down": "mlp.down_proj",
}  # fmt: skip
#: Tensors of each kind of layer by a name that only this family has; `{}` is the number of a block.
FAMILIES: Mapping[str, Mapping[str, Mapping[str, TensorName]]] = {
    "model.embed_tokens.weight": {
        "embedding": {"table": TensorName("model.embed_tokens.weight")},
        "block": {
            **{k: v for name, path in _LLAMA_LAYERS.items()
               for k, v in _linear(name, f"model.layers.{{}}.{path}").items()},
            **_norm("norm1", "model.layers.{}.input_layernorm"),
            **_norm("norm2", "model.layers.{}.post_attention_layernorm"),
        },
        "head": {"table": TensorName("lm_head.weight"), **_norm("norm", "model.norm")},
    },
    "wte.weight": {
        "embedding": {"table": TensorName("wte.weight"), "places": TensorName("wpe.weight")},
        "block": {
            **{k: v for part, name in enumerate(("query", "key", "value"))
               for k, v in _forward(name, "h.{}.attn.c_attn", part, 3).items()},
            **_forward("output", "h.{}.attn.c_proj"),
            **_forward("up", "h.{}.mlp.c_fc"),
            **_forward("down", "h.{}.mlp.c_proj"),
            **_norm("norm1", "h.{}.ln_1"),
            **_norm("norm2", "h.{}.ln_2"),
        },
        "head": {"table": TensorName("lm_head.weight"), **_norm("norm", "ln_f")},
    },
}  # fmt: skip
#: Beginnings of names that some files have and others have not.
PREFIXES = ("", "transformer.", "model.")
#: Bytes of a tensor's entry in a header, at most.
HEADER_BYTES_PER_TENSOR = 192
_TYPES = {kind.file_name: kind for kind in (DType.F32, DType.F16, DType.BF16)}


class TensorCheckpoint:
    """Tensors of a file, or of the files of a folder's index."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._tensors: dict[str, tuple[Path, int, Mapping[str, Any]]] = {}
        for file in self._files():
            start, header = _read_header(file)
            entries = {name: value for name, value in header.items() if name != "__metadata__"}
            self._tensors |= {name: (file, start, value) for name, value in entries.items()}
        found = [(prefix, key) for key in FAMILIES for prefix in PREFIXES if prefix + key in self._tensors]
        if not found:
            known = ", ".join(FAMILIES)
            raise PlanError(f"{path}: expected a tensor named {known}, found none", hint="Llama's or GPT-2's names")
        self.prefix, self.family = found[0]

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        index = self.path / "model.safetensors.index.json"
        if not index.exists():
            return [self.path / "model.safetensors"]
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise PlanError(f"{index}: expected the files of tensors: {error}") from error
        if outside := [name for name in names if Path(name).name != name]:
            raise PlanError(f"{index}: expected names of files beside it, found {outside[0]}")
        return [self.path / name for name in sorted(names)]

    def tensor(self, name: str) -> Array:
        """Return a tensor in fp32, which is read from its file.

        Raises `PlanError` where it is missing or of another type.
        """
        if self.prefix + name not in self._tensors:
            raise PlanError(f"{self.path}: tensor {self.prefix}{name} is missing")
        file, start, entry = self._tensors[self.prefix + name]
        if entry["dtype"] not in _TYPES:
            raise PlanError(f"{file}: {name}: expected {', '.join(_TYPES)}, found {entry['dtype']}")
        shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
        kind = _TYPES[entry["dtype"]].numpy
        if end - begin != math.prod(shape) * np.dtype(kind).itemsize:
            raise PlanError(f"{file}: {name}: expected {shape} of {entry['dtype']}, found {end - begin} bytes")
        try:
            found = np.fromfile(file, kind, math.prod(shape), offset=start + begin)
            return found.reshape(shape).astype(np.float32)
        except (OSError, ValueError) as error:
            raise PlanError(f"{file}: {name}: the file was cut short: {error}") from error

    def layer(self, model: Transformer, layer: int) -> dict[str, Array]:
        """Return a layer's parameters by name.

        Raises `PlanError` where a tensor is missing or of another shape than the model's.
        """
        kind = layer_kind(model, layer)
        names = FAMILIES[self.family][kind]
        found: dict[str, Array] = {}
        for parameter, shape in parameter_shapes(model, kind=kind).items():
            known = names.get(parameter)
            if known is None:
                raise PlanError(f"{self.path}: names of such files have no parameter '{parameter}'")
            name = known.name.format(layer - bool(model.vocabulary))
            if kind == "head" and parameter == "table" and model.has_tied_head:
                name = FAMILIES[self.family]["embedding"]["table"].name
            array = self.tensor(name)
            array = array.T if known.transposed else np.split(array, known.parts, axis=-1)[known.part]
            array = array[: model.sequence] if parameter == "places" else array
            if array.shape != shape:
                raise PlanError(f"{self.path}: {name}: expected {shape} of {model.name}, found {array.shape}")
            found[parameter] = np.ascontiguousarray(array)
        return found


def _read_header(file: Path) -> tuple[int, Mapping[str, Any]]:
    """Return the begin of a file's data, and its tensors."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > 100 << 20:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(opened.read(size))
    except (OSError, ValueError) as error:
        raise PlanError(f"{file}: expected a safetensors file: {error}") from error
    return 8 + size, header


def write_checkpoint(
    path: str | os.PathLike[str], model: Transformer, layers: Iterable[tuple[int, Mapping[str, Array]]]
) -> None:
    """Write layers as one safetensors file.

    Names are those of Llama or, for blocks without gates, of GPT-2. `layers` yields each layer's number and parameters,
    one after another, so that the model need not be in memory; a tied head's table is left out.
    """
    family = FAMILIES["model.embed_tokens.weight" if model.gated else "wte.weight"]
    room = HEADER_BYTES_PER_TENSOR * 16 * (model.layers + 2)
    entries: dict[str, object] = {}
    with atomic_write(path) as draft, draft.open("wb") as file:
        file.seek(8 + room)
        for layer, parameters in layers:
            for name, array in _named_tensors(family, model, layer, parameters).items():
                begin = file.tell() - 8 - room
                file.write(array.tobytes())
                place = {"shape": list(array.shape), "data_offsets": [begin, begin + array.nbytes]}
                entries[name] = {"dtype": model.dtype.file_name, **place}
        text = json.dumps(entries, separators=(",", ":")).encode()
        file.seek(0)
        file.write(room.to_bytes(8, "little") + text.ljust(room))


def _named_tensors(
    family: Mapping[str, Mapping[str, TensorName]], model: Transformer, layer: int, parameters: Mapping[str, Array]
) -> dict[str, Array]:
    kind, found = layer_kind(model, layer), dict[str, Array]()
    for parameter, array in parameters.items():
        if kind == "head" and parameter == "table" and model.has_tied_head:
            continue
        if parameter not in family[kind]:
            raise PlanError(f"{model.name}: names of such files have no parameter '{parameter}'")
        known = family[kind][parameter]
        name = known.name.format(layer - bool(model.vocabulary))
        value = np.ascontiguousarray(array.T) if known.transposed else array
        found[name] = np.concatenate([found[name], value], axis=-1) if known.part else value
    return found
