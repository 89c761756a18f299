"""Loads decoders of quantised checkpoints: folders of safetensors, GGUF files.

Parameters have no memory until the checkpoint's tensors stand in their place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ....ir import GraphError, UsageError, quote
from .gguf_model import architecture_of, head_width, open_gguf, read_tensors
from .packed_layers import PackedEmbedding, PackedLinear
from .packed_matrix import PackedMatrix
from .schemes import checkpoint_package, layer_of_scheme, replace_layer

_METHOD = "compressed-tensors"


def load_checkpoint(path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """Return the decoder of a checkpoint, its quantised weights packed.

    It is a `*ForCausalLM` of transformers.

    `path` is a `.gguf` file, or a folder with config.json and safetensors files. Other parameters have `dtype`.

    Raises `UsageError` where a package is not installed or a format has no packed form, `GraphError` where a file is
    damaged.
    """
    place = Path(path)
    if place.suffix == ".gguf":
        return _load_gguf(place, dtype).eval().to(device)
    if not (place / "config.json").is_file():
        raise UsageError(f"{place} is no checkpoint: expected a .gguf file, or a folder with config.json",
                         hint="give the folder that save_pretrained wrote")  # fmt: skip
    config = checkpoint_package("transformers").AutoConfig.from_pretrained(place)
    given = getattr(config, "quantization_config", None) or {}
    if given.get("quant_method") != _METHOD:
        auto = checkpoint_package("transformers").AutoModelForCausalLM
        return auto.from_pretrained(place, dtype=dtype).eval().to(device)  # type: ignore[no-any-return]
    return _load_compressed(place, config, given, dtype).eval().to(device)


def _load_gguf(path: Path, dtype: torch.dtype) -> nn.Module:
    reader = open_gguf(path)
    architecture_of(reader, path)
    config = checkpoint_package("transformers").AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    has_head = any(each.name == "output.weight" for each in reader.tensors)
    config.tie_word_embeddings = not has_head
    config.pad_token_id = None  # it only initialises a row
    if hasattr(config, "head_dim"):
        config.head_dim = head_width(reader, config.head_dim)
    model = _empty_model(config, dtype)
    ties = _ties(model)
    for name, value in read_tensors(reader, path, model, config):
        _place(model, name, value, dtype)
    return _tie(model, ties)


def _load_compressed(folder: Path, config: Any, given: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    quantization = checkpoint_package("compressed_tensors.quantization")
    tensors = _read_safetensors(folder)
    del config.quantization_config
    model = _empty_model(config, dtype)
    ties = _ties(model)
    parsed = quantization.QuantizationConfig.model_validate(_own_fields(given, quantization))
    quantization.apply_quantization_config(model, parsed)
    schemes = {name: layer.quantization_scheme for name, layer in model.named_modules() if _has_scheme(layer)}
    for name, scheme in schemes.items():
        own = {each.removeprefix(f"{name}."): tensors.pop(each) for each in list(tensors) if _is_own(each, name)}
        replace_layer(model, name, layer_of_scheme(name, scheme, own))
    for name, parameter in list(model.named_parameters()):
        if parameter.is_meta and name in tensors:
            _place(model, name, tensors[name], dtype)
    return _tie(model, ties)


def _own_fields(given: Mapping[str, Any], quantization: Any) -> dict[str, Any]:
    """Return the fields of a quantisation that the package reads.

    Raises `UsageError` for sparse weights and rotated ones.
    """
    for field in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        if given.get(field):
            raise UsageError(f"config.json: {field} of compressed-tensors is not supported, found {given[field]}",
                             hint="export the model without it")  # fmt: skip
    return {name: value for name, value in given.items() if name in quantization.QuantizationConfig.model_fields}


def _has_scheme(layer: nn.Module) -> bool:
    return getattr(layer, "quantization_scheme", None) is not None


def _is_own(tensor: str, layer: str) -> bool:
    return tensor.rpartition(".")[0] == layer


def _read_safetensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder's files.

    Raises `GraphError` where one is damaged or missing.
    """
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())["weight_map"].values() if index.is_file() else ["model.safetensors"]
    reader, found = checkpoint_package("safetensors.torch"), dict[str, Tensor]()
    for file in sorted({*listed}):
        try:
            found.update(reader.load_file(folder / file))
        except Exception as error:  # of the library's own kinds, or of the disk
            raise GraphError(f"{folder / file} cannot be read: {error}", hint="download it again") from error
    return found


# ---- models without memory


@contextmanager
def _without_memory() -> Iterator[None]:
    """Let new parameters have shapes only; buffers, as tables of rotary embeddings, are computed."""
    register: Callable[..., None] = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:  # one that is, is tied
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _empty_model(config: Any, dtype: torch.dtype) -> nn.Module:
    auto = checkpoint_package("transformers").AutoModelForCausalLM
    with _without_memory():
        return auto.from_config(config, dtype=dtype)  # type: ignore[no-any-return]


def _ties(model: nn.Module) -> dict[str, str]:
    """Return the parameters that are others, by name."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}


def _place(model: nn.Module, name: str, value: PackedMatrix | Tensor, dtype: torch.dtype) -> None:
    """Give a model its parameter of a name; that of a packed matrix is a layer."""
    stem, _, last = name.rpartition(".")
    owner = model.get_submodule(stem)
    if isinstance(value, PackedMatrix):
        replace_layer(model, stem, _packed_layer(owner, value, dtype))
    elif isinstance(owner, PackedLinear):
        owner.bias = value.to(dtype)
    else:
        setattr(owner, last, nn.Parameter(value.to(dtype), requires_grad=False))


def _packed_layer(owner: nn.Module, matrix: PackedMatrix, dtype: torch.dtype) -> nn.Module:
    if isinstance(owner, nn.Embedding):
        scale = getattr(owner, "embed_scale", None)
        return PackedEmbedding(matrix, dtype, scale if isinstance(scale, Tensor) else None)
    bias = getattr(owner, "bias", None)
    if not isinstance(owner, nn.Linear) or (bias is not None and not bias.is_meta):
        return PackedLinear(matrix, None if bias is None else bias.data)
    return PackedLinear(matrix)


def _tie(model: nn.Module, ties: Mapping[str, str]) -> nn.Module:
    """Let tied layers have one matrix, and return the model.

    Raises `UsageError` where a parameter has no tensor.
    """
    for name, source in ties.items():
        stem, root = name.rpartition(".")[0], source.rpartition(".")[0]
        owner, first = model.get_submodule(stem), model.get_submodule(root)
        if isinstance(first, PackedEmbedding) and isinstance(owner, nn.Linear):
            replace_layer(model, stem, PackedLinear(first.matrix))
        elif not isinstance(owner, PackedLinear):
            setattr(owner, name.rpartition(".")[2], getattr(first, source.rpartition(".")[2]))
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise UsageError(f"the checkpoint has no tensor for {', '.join(map(quote, missing[:4]))}",
                         hint="it is of another model, or of a part of one")  # fmt: skip
    return model
