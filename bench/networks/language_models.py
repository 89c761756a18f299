"""Decoders of transformers with random weights and a static cache."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

#: Configurations: type of model, and the fields that differ from transformers' defaults.
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tiny": ("llama", {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}),
    "llama-1b": ("llama", {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}),
    "llama-8b": ("llama", {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}),
    "qwen3-0.6b": ("qwen3", {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}),
    "qwen3-1.7b": ("qwen3", {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}),
    "qwen3-8b": ("qwen3", {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}),
}  # fmt: skip


def make_config(name: str, layers: int | None = None) -> Any:
    """Return the configuration of a decoder; head and embedding are two matrices."""
    kind, fields = CONFIGS[name]
    given = {**fields, "tie_word_embeddings": False, "max_position_embeddings": 4096}
    if layers is not None:
        given["num_hidden_layers"] = layers
    return import_module("transformers").AutoConfig.for_model(kind, **given)


def random_model(config: Any, device: str, dtype: torch.dtype) -> Any:
    """Return a decoder with random weights."""
    torch.manual_seed(0)
    with torch.device(device):
        model = import_module("transformers").AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.05)
    return model


class CachedDecoder(nn.Module):
    """A decoder that writes its keys and values into a static cache.

    Its weights are random without a `model`. `forward` maps tokens [N, S] to the most likely next ones [N, 1], which
    stay on the device. The position is data of the device too, so that one recorded graph serves every token.
    """

    def __init__(
        self, config: Any, batch: int, length: int, device: str, dtype: torch.dtype, model: nn.Module | None = None
    ) -> None:
        super().__init__()
        transformers = import_module("transformers")
        self.model = random_model(config, device, dtype) if model is None else model
        self.length, self.vocabulary = length, config.vocab_size
        self.cache = transformers.StaticCache(config=config, max_cache_len=length)
        heads, width = config.num_key_value_heads, config.head_dim
        self.cache.early_initialization(batch, heads, width, dtype, torch.device(device))
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        known = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        self._takes_position = "cache_position" in known

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the next token of each sequence."""
        found: Tensor = self.scores(tokens).argmax(-1, keepdim=True)
        return found

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scores [N, words] of the next tokens."""
        places = self.position + torch.arange(tokens.shape[1], device=tokens.device)
        given = {self._cache_name: self.cache, "position_ids": places[None]}
        if self._takes_position:
            given["cache_position"] = places
        found: Tensor = self.model(input_ids=tokens, use_cache=True, logits_to_keep=1, **given).logits[:, -1]
        self.position.add_(tokens.shape[1])
        return found

    def move_to(self, position: int) -> None:
        """Let the next token have a position; the cache keeps its elements."""
        self.position.fill_(position)
        for layer in self.cache.layers:
            if isinstance(getattr(layer, "cumulative_length", None), Tensor):
                layer.cumulative_length.fill_(position)

    def bytes_per_token(self, bits: int | None = None, filled: float = 1.0) -> int:
        """Return the bytes of a token's matrices, and of a `filled` cache.

        `filled` is the share that has elements. With `bits` the matrices have numbers of so many bits.
        """
        layers = [*self.model.modules()]
        products = [m for m in layers if getattr(m, "in_features", None)]
        packed = {id(m.matrix): m.matrix.stored_bytes for m in products if hasattr(m, "matrix")}
        matrices = {id(m.weight): m.weight for m in products if not hasattr(m, "matrix")}.values()
        cached = [each for layer in self.cache.layers for each in (layer.keys, layer.values)]
        stored: int = sum(w.numel() * (bits or 8 * w.element_size()) // 8 for w in matrices) + sum(packed.values())
        return stored + int(filled * sum(int(each.nbytes) for each in cached))
