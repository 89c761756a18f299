"""Small models of libraries, with random weights and inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .table import Architecture

#: Standard deviation of the noise on all weights: layers that start at zero would hide errors.
WEIGHT_NOISE = 0.02
TOKENS = 30


def build_model(architecture: Architecture) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return a model for inference, and its inputs by argument."""
    torch.manual_seed(0)
    model = BUILDERS[architecture.library](architecture.model, architecture.options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter += WEIGHT_NOISE * torch.randn_like(parameter)
    return model, {name: make_input(text) for name, text in architecture.inputs.items()}


def make_input(text: str) -> Any:
    """Return an input of a kind and sizes, as `ids 2 12`."""
    kind, *sizes = text.split()
    return INPUTS[kind](*map(int, sizes))


def _mask(rows: int, columns: int) -> torch.Tensor:
    """Return a mask whose last row has padding."""
    mask = torch.ones(rows, columns, dtype=torch.int64)
    mask[-1, -columns // 4 :] = 0
    return mask


INPUTS: Mapping[str, Callable[..., Any]] = {
    "ids": lambda *sizes: torch.randint(2, TOKENS, sizes),
    "mask": _mask,
    "ones": lambda *sizes: torch.ones(sizes, dtype=torch.int64),
    "zeros": lambda *sizes: torch.zeros(sizes, dtype=torch.int64),
    "true": lambda *sizes: torch.ones(sizes, dtype=torch.bool),
    "range": lambda *sizes: torch.arange(sizes[-1]).expand(sizes).contiguous(),
    "unit": lambda *sizes: torch.rand(sizes),
    "normal": lambda *sizes: torch.randn(sizes),
    "time": lambda *sizes: torch.full(sizes, 7.0),
    "number": lambda number: number,
    "images": lambda *sizes: [torch.rand(sizes[1:]) for _ in range(sizes[0])],
}


def _transformers_model(name: str, options: Mapping[str, Any]) -> torch.nn.Module:
    """Return the model of a type, or of "<type>:<class>", with small sizes."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    kind, _, own = name.partition(":")
    class_ = own or MODEL_MAPPING_NAMES[kind]
    config = shrink(CONFIG_MAPPING[kind], options)
    model: torch.nn.Module = getattr(importlib.import_module("transformers"), class_)._from_config(config)
    return model


def shrink(config_class: Any, options: Mapping[str, Any]) -> Any:
    """Return a config with small sizes, in all of its parts.

    Of `options` those count that the config has.
    Options of `own` are those of this config only; where one names a part, it has those of the part.
    """
    given = {key: value for key, value in options.items() if key != "own"}
    own = dict(options.get("own", {}))
    plain = config_class()
    known = {key: value for key, value in given.items() if _is_size(plain, key, given)}
    parts: dict[str, Any] = {}
    for key, value in vars(plain).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            parts[key] = shrink(type(value), {**given, "own": own.pop(key, {})}).to_dict()
    return config_class(**{**known, **parts, **own})


def _is_size(config: Any, key: str, given: Mapping[str, Any]) -> bool:
    """Return whether a config has a size of this name; a second name counts where the first is not given."""
    aliases = getattr(config, "attribute_map", {})
    return aliases[key] not in given if key in aliases else key in vars(config)


def _timm_model(name: str, options: Mapping[str, Any]) -> torch.nn.Module:
    """Return a model of timm's registry, or an instance of "<module>.<class>"."""
    import timm

    module, _, class_ = name.rpartition(".")
    make = getattr(importlib.import_module(f"timm.models.{module}"), class_) if module else None
    model: torch.nn.Module = make(**options) if make else timm.create_model(name, **options)
    return model


def _torchvision_model(name: str, options: Mapping[str, Any]) -> torch.nn.Module:
    import torchvision

    found: Any = torchvision.models
    for part in name.split("."):
        found = getattr(found, part)
    model: torch.nn.Module = found(**{key: None if value == "none" else value for key, value in options.items()})
    return model


def _diffusers_model(name: str, options: Mapping[str, Any]) -> torch.nn.Module:
    import diffusers

    model: torch.nn.Module = getattr(diffusers, name)(**options)
    return model


BUILDERS: Mapping[str, Callable[[str, Mapping[str, Any]], torch.nn.Module]] = {
    "transformers": _transformers_model,
    "timm": _timm_model,
    "torchvision": _torchvision_model,
    "diffusers": _diffusers_model,
}
