"""Description of a transformer from the configuration of a Hugging Face model.

Fields decide, not names: `rms_norm_eps` stands in configurations of gated blocks with RMS norms and
rotary positions (Llama, Mistral, Qwen), `n_embd` in GPT-2's, `type_vocab_size` in those of encoders that norm their
sums (BERT). Choices that a description cannot express are returned as notes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ir import UsageError
from .transformer import Transformer

#: Names of a size in configurations of different families, the first that is there counts.
_NAMES: Mapping[str, Sequence[str]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim"),
    "kv_heads": ("num_key_value_heads",),
    "vocabulary": ("vocab_size",),
    "head_width": ("head_dim",),
}
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
}  # fmt: skip
#: Fields of models that are no stack of equal blocks, with the reason.
_OTHER_MODELS = {
    "num_experts": "mixtures of experts", "num_local_experts": "mixtures of experts",
    "n_routed_experts": "mixtures of experts", "is_encoder_decoder": "an encoder and a decoder",
    "kv_lora_rank": "keys and values of low rank", "vision_config": "several models",
    "use_parallel_residual": "attention and neurons in parallel", "parallel_attn": "attention and neurons in parallel",
    "alibi": "biases of distances in place of positions",
}  # fmt: skip
#: Tokens of a sequence, and sequences of a mini-batch, unless the caller says otherwise.
DEFAULT_SEQUENCE, DEFAULT_BATCH = 2048, 256


def hugging_face_transformer(
    path: str | os.PathLike[str], *, sequence: int | None = None, batch: int | None = None
) -> tuple[Transformer, list[str]]:
    """Return the description of a `config.json`, and notes.

    The notes name choices that the description leaves out. A sequence has 2,048 tokens, or as many as the model has
    positions, where `sequence` is None. Raises `UsageError` for another file, a missing size, and models that are no
    stack of equal blocks.
    """
    config = _read(path)
    for name, reason in _OTHER_MODELS.items():
        if config.get(name):
            raise UsageError(f"{path}: expected a stack of equal blocks, found {reason} ({name})")
    sizes: dict[str, Any] = {name: _size(config, name, path) for name in _NAMES}
    most = next((int(config[name]) for name in _POSITIONS if config.get(name)), DEFAULT_SEQUENCE)
    tokens = sequence or min(DEFAULT_SEQUENCE, most)
    if tokens > most:
        raise UsageError(f"{path}: sequence: expected at most {most} tokens, found {tokens}")
    gated, encoder = "rms_norm_eps" in config, "type_vocab_size" in config
    try:
        model = Transformer(
            name=str(config.get("_name_or_path") or config.get("model_type") or Path(path).parent.name or "model"),
            **sizes,
            sequence=tokens,
            batch=batch or DEFAULT_BATCH,
            gated=gated,
            biases=bool(config.get("mlp_bias", not gated)),
            attention_biases=_has_attention_biases(config, gated),
            precision="single" if _dtype(config) == "float32" else "mixed",
            activation=_activation(config, path, "silu" if gated else "gelu_tanh" if "n_embd" in config else "gelu"),
            positions="rotary" if not gated and "rope_theta" in _rotary(config) else "",
            tied=bool(config.get("tie_word_embeddings", True)),
            causal=not encoder or bool(config.get("is_decoder")),
            post_norm=encoder,
            theta=float(_rotary(config).get("rope_theta", 10000.0)),
            epsilon=next((float(config[name]) for name in _EPSILONS if name in config), 1e-5),
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from None
    return model, list(_notes(config, tokens, encoder))


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: expected a model's configuration as JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected a model's configuration, an object of JSON")
    return found


def _size(config: Mapping[str, Any], name: str, path: object) -> int:
    for field in _NAMES[name]:
        value = config.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"{path}: {field}: expected a whole number, found {value!r}")
        return value
    if name in ("hidden", "layers", "heads", "vocabulary"):
        raise UsageError(f"{path}: expected one of the fields {', '.join(_NAMES[name])}, found none")
    return 0


def _activation(config: Mapping[str, Any], path: object, usual: str) -> str:
    found = config.get("hidden_act") or config.get("activation_function") or config.get("hidden_activation") or usual
    if found not in _ACTIVATIONS and found != usual:
        raise UsageError(f"{path}: activation: expected one of {', '.join(_ACTIVATIONS)}, found {found!r}")
    return _ACTIVATIONS.get(found, usual)


def _has_attention_biases(config: Mapping[str, Any], gated: bool) -> bool:
    """Return whether queries, keys and values have a bias; Qwen 2 has one without a field that says so."""
    for name in ("attention_bias", "qkv_bias", "use_qkv_bias"):
        if name in config:
            return bool(config[name])
    return not gated or config.get("model_type") == "qwen2"


def _dtype(config: Mapping[str, Any]) -> object:
    return config.get("torch_dtype") or config.get("dtype")


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of rotary positions, which are fields or an object of their own."""
    return {**config, **(config.get("rope_parameters") or {})}


def _notes(config: Mapping[str, Any], tokens: int, encoder: bool) -> Sequence[str]:
    scaling = config.get("rope_scaling") or {}
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    found = {
        f"attention over a window of {window} tokens counts as one over {tokens}": bool(window and window < tokens),
        "scaled rotary angles are left out": bool(scaling) or _rotary(config).get("rope_type", "default") != "default",
        "heads turn in part: taken as wholly turned": float(config.get("partial_rotary_factor") or 1) != 1,
        "norms of queries and keys are left out": str(config.get("model_type", "")).startswith("qwen3"),
        "a bias of the attention's last matrix is left out": "rms_norm_eps" in config
        and bool(config.get("attention_bias"))
        and not config.get("mlp_bias"),
        "the head is the embedding's table alone, without a layer before it": encoder,
    }
    return [text for text, holds in found.items() if holds]
