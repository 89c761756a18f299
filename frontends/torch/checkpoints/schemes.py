"""Layers of compressed-tensors as layers of packed matrices.

The package says how a weight is stored (`weight_packed`, or `weight` of bytes), and how an input is rounded. Its own
layers become dense before they run; these stay packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ....ir import UsageError, install_command, quote
from .packed_layers import PackedLinear
from .packed_matrix import PackedMatrix

#: Types of stored weights by type and bits of a scheme, and strategies of their scales.
_FLOATS, _STRATEGIES = {8: torch.float8_e4m3fn}, ("tensor", "channel", "group", "block")
#: Tensors of a weight that change its meaning in ways that packed matrices have not.
_OTHERS = ("weight_g_idx", "weight_global_scale", "input_global_scale")
_HINT = "dequantise it: load it with transformers and quantization_config=CompressedTensorsConfig(dequantize=True)"


def checkpoint_package(name: str) -> Any:
    """Return a package that reads checkpoints.

    Raises `UsageError` where it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"this checkpoint needs the package {quote(name)}: {error}",
                         hint=install_command("checkpoints")) from error  # fmt: skip


def pack_layers(model: nn.Module) -> nn.Module:
    """Replace the layers of a model that compressed-tensors quantised; return it.

    The model is one of `AutoModel.from_pretrained` that has not run yet: its first run makes it dense.

    Raises `UsageError` for a scheme without a packed form, and where no layer is quantised.
    """
    found = {name: layer for name, layer in model.named_modules() if getattr(layer, "quantization_scheme", None)}
    for name, layer in found.items():
        tensors = {**dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers(recurse=False))}
        replace_layer(model, name, layer_of_scheme(name, layer.quantization_scheme, tensors))
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no layers that compressed-tensors quantised", hint="load it first"
        )
    return model


def replace_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Give a model another layer of a name."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)


def layer_of_scheme(name: str, scheme: Any, tensors: Mapping[str, Tensor]) -> PackedLinear:
    """Return the layer of a scheme's tensors, by name.

    Raises `UsageError` for another scheme, and where a tensor is missing.
    """
    given, where = scheme.weights, f"layer {quote(name)}"
    kind, strategy = (_word(getattr(given, field, None)) for field in ("type", "strategy"))
    bits = 0 if given is None else given.num_bits
    known = (kind == "int" and 1 <= bits <= 8) or (kind == "float" and bits in _FLOATS)
    others = [other for other in _OTHERS if other in tensors]
    if not known or strategy not in _STRATEGIES or scheme.output_activations is not None or others:
        found = f"{bits} bits of {kind} by {strategy}" + (f" with {', '.join(others)}" if others else "")
        found += " and rounded results" * (scheme.output_activations is not None)
        raise UsageError(f"{where}: expected integers of up to 8 bits or f8e4m3, with scales of tensors, channels, "
                         f"groups or blocks; found {found}", hint=_HINT)  # fmt: skip
    matrix = _matrix(where, given, strategy, tensors)
    return PackedLinear(matrix, _without_gradient(tensors.get("bias")), _rounding(scheme.input_activations, tensors))


def _word(value: object) -> str:
    """Return the text of a field, which may be a member of an enumeration."""
    return str(getattr(value, "value", value))


def _matrix(where: str, given: Any, strategy: str, tensors: Mapping[str, Tensor]) -> PackedMatrix:
    scale = _tensor(where, "weight_scale", tensors)
    if "weight_packed" in tensors:
        helpers = checkpoint_package("compressed_tensors.compressors.pack_quantized.helpers")
        shape = torch.Size(_tensor(where, "weight_shape", tensors).tolist())
        numbers = helpers.unpack_from_int32(tensors["weight_packed"].detach(), given.num_bits, shape)
    else:
        numbers = _tensor(where, "weight", tensors)
        if numbers.dtype not in (torch.int8, torch.float8_e4m3fn):
            raise UsageError(
                f"{where}: expected a weight of bytes, found {numbers.dtype}",
                hint="convert the model before its first run, which makes it dense",
            )
    rows, columns = numbers.shape
    zero = None if given.symmetric else _without_gradient(tensors.get("weight_zero_point"))
    steps = scale.reshape(-1, 1) if strategy in ("tensor", "channel") else scale
    if zero is not None and "weight_packed" in tensors and strategy in ("group", "channel"):
        zero = helpers.unpack_from_int32(zero, given.num_bits, (rows, steps.shape[-1]), packed_dim=0)
    if strategy == "block":
        tall, wide = given.block_structure
        if steps.shape[-1] != columns // wide:
            raise UsageError(f"{where}: blocks of {wide} do not divide {columns} columns", hint=_HINT)
        steps = steps.repeat_interleave(tall, 0)[:rows]
        zero = None if zero is None else zero.repeat_interleave(tall, 0)[:rows]
    elif strategy == "group" and steps.shape[-1] * given.group_size != columns:
        raise UsageError(
            f"{where}: expected {columns} columns in groups of {given.group_size}, found {steps.shape[-1]} scales",
            hint="quantise it with a group size that divides its columns",
        )
    return PackedMatrix(numbers, steps, zero if zero is None else zero.reshape(-1, steps.shape[-1]))


def _tensor(where: str, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if name not in tensors:
        raise UsageError(f"{where}: expected tensor {quote(name)}, found {', '.join(sorted(tensors)) or 'none'}",
                         hint="convert the model before its first run, or download the checkpoint again")  # fmt: skip
    return tensors[name].detach()


def _without_gradient(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _rounding(given: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the function that rounds a layer's input, None without one."""
    if given is None:
        return None
    package = checkpoint_package("compressed_tensors.quantization.lifecycle.forward")
    if given.dynamic is True:
        return partial(_round_dynamically, package, given)
    scale, zero = _tensor("a rounded input", "input_scale", tensors), _without_gradient(tensors.get("input_zero_point"))
    return lambda x: package.fake_quantize(x, scale, zero, given)


def _round_dynamically(package: Any, given: Any, x: Tensor) -> Tensor:
    scale, zero = package.compute_dynamic_scales_and_zp(value=x, args=given, module=None)
    found: Tensor = package.fake_quantize(x, scale, zero, given)
    return found
