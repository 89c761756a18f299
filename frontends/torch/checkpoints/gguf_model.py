"""Decoders of GGUF files: their weights, by transformers' names.

A file's rows of query and key are in the order of its own rotary embedding where `llama` is its architecture: pairs
are neighbours there, and halves of a head in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....ir import GraphError, UsageError, quote
from .gguf_blocks import BLOCK_FORMATS, split_blocks
from .packed_matrix import PackedMatrix
from .schemes import checkpoint_package

#: Architectures whose tensors are transformers' own, but for order and norms below.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3")
#: Architectures whose queries and keys are in pairs, and those whose norms are stored with one added.
_PAIRED_HEADS, _SHIFTED_NORMS = ("llama",), ("gemma2", "gemma3")
_PLAIN = ("F32", "F16", "BF16", "F64")


def open_gguf(path: Path) -> Any:
    """Return the reader of a file.

    Raises `GraphError` where it is damaged, or has a type of an unknown number.
    """
    package = checkpoint_package("gguf")
    try:
        reader = package.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise GraphError(
            f"{path.name} is no GGUF file of a known version and known types, or is truncated: {error}",
            hint="download it again; a newer package 'gguf' may know its types",
        ) from error
    end = max((int(each.data_offset) + int(each.n_bytes) for each in reader.tensors), default=0)
    if end > path.stat().st_size:
        raise GraphError(f"{path.name} is truncated: expected {end} bytes, found {path.stat().st_size}",
                         hint="download it again")  # fmt: skip
    return reader


def read_tensors(reader: Any, path: Path, model: nn.Module, config: Any) -> Iterator[tuple[str, PackedMatrix | Tensor]]:
    """Yield the parameters of a model: packed matrices, and other tensors.

    Raises `UsageError` for an architecture or type of blocks without a rule, and where a parameter is missing.
    """
    package = checkpoint_package("gguf")
    kind = architecture_of(reader, path)
    number = next(n for n, name in package.MODEL_ARCH_NAMES.items() if name == kind)
    names = package.get_tensor_name_map(number, config.num_hidden_layers)
    stored = {each.name: each for each in reader.tensors}
    tied = {id(p): n for n, p in reversed(list(model.named_parameters(remove_duplicate=False)))}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        stem, _, last = name.rpartition(".")
        theirs = names.get_name(stem, try_suffixes=())
        found = stored.get(f"{theirs}.{last}")
        if found is None and tied[id(parameter)] != name:
            continue
        if found is None:
            raise UsageError(f"{path.name}: expected a tensor for {quote(name)}, found none of name "
                             f"{quote(f'{theirs}.{last}')}", hint="the file is of another model")  # fmt: skip
        shape = tuple(int(n) for n in reversed(found.shape))
        if shape != tuple(parameter.shape):
            raise UsageError(f"{path.name}: tensor {quote(found.name)}: expected shape {list(parameter.shape)}, "
                             f"found {list(shape)}", hint="metadata and tensors differ: download it")  # fmt: skip
        order = _row_order(kind, theirs, shape[0], config)
        value = _value(found, path, order)
        yield name, value - 1 if kind in _SHIFTED_NORMS and "norm" in theirs and isinstance(value, Tensor) else value


def architecture_of(reader: Any, path: Path) -> str:
    """Return the architecture that a file names.

    Raises `UsageError` for one without a rule.
    """
    field = reader.get_field("general.architecture")
    kind = str(bytes(field.parts[-1]), "utf-8") if field is not None else "none"
    if kind not in ARCHITECTURES:
        raise UsageError(f"{path.name}: architecture {quote(kind)} is not supported",
                         hint=f"files may have one of {', '.join(ARCHITECTURES)}")  # fmt: skip
    return kind


def head_width(reader: Any, default: int | None) -> int | None:
    """Return the width of heads that a file names, else the default."""
    field = next((f for name, f in reader.fields.items() if name.endswith(".attention.key_length")), None)
    return default if field is None else int(field.parts[-1][0])


def _row_order(kind: str, name: str, rows: int, config: Any) -> Tensor | None:
    """Return the order of rows in which pairs of a head become its halves, None where they are."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.rpartition(".")[2])
    if kind not in _PAIRED_HEADS or heads is None:
        return None
    return torch.arange(rows).reshape(heads, -1, 2).transpose(1, 2).reshape(-1)


def _value(found: Any, path: Path, order: Tensor | None) -> PackedMatrix | Tensor:
    kind = found.tensor_type.name
    rows: Any = slice(None) if order is None else order
    if kind in _PLAIN:
        return torch.from_numpy(_floats(found))[rows]
    if kind in BLOCK_FORMATS and len(found.shape) == 2:
        parts = split_blocks(np.asarray(found.data), kind)
        numbers, scale, shift = (None if part is None else torch.from_numpy(part)[rows] for part in parts)
        assert numbers is not None and scale is not None
        return PackedMatrix(numbers, scale, shift=shift)
    raise UsageError(
        f"{path.name}: tensor {quote(found.name)} [{_list(found.shape)}] has blocks of type {kind}",
        hint=f"matrices may be {', '.join((*BLOCK_FORMATS, *_PLAIN))}: quantise the model to one of them",
    )


def _floats(found: Any) -> Any:
    shape = tuple(int(n) for n in reversed(found.shape))
    if found.tensor_type.name == "BF16":
        return import_module("gguf").quants.dequantize(found.data, found.tensor_type).reshape(shape).copy()
    return np.array(found.data, np.float32).reshape(shape)


def _list(shape: Sequence[int]) -> str:
    return ", ".join(str(int(n)) for n in reversed(list(shape)))
