"""Layers whose weights are packed matrices; tied ones share theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .packed_matrix import PackedMatrix


class PackedLinear(nn.Module):
    """Linear layer that reads packed numbers.

    `round_input` quantises the input, where the scheme of the weights says so.
    """

    bias: Tensor | None

    def __init__(
        self, matrix: PackedMatrix, bias: Tensor | None = None, round_input: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.matrix, self.round_input = matrix, round_input
        self.register_buffer("bias", bias)
        self.in_features, self.out_features = matrix.columns, matrix.rows

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the dequantised weight."""
        given = x if self.round_input is None else self.round_input(x)
        return functional.linear(given, self.matrix(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    @property
    def weight(self) -> Tensor:
        """The dequantised weight, for readers that are no products."""
        found: Tensor = self.matrix(self.matrix.scale.dtype)
        return found


class PackedEmbedding(nn.Module):
    """Embedding that dequantises the rows that it reads.

    `factor` scales them, where the model does.
    """

    factor: Tensor | None

    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype, factor: Tensor | None) -> None:
        super().__init__()
        self.matrix, self.dtype = matrix, dtype
        self.register_buffer("factor", factor)
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows of tokens."""
        found: Tensor = self.matrix(self.dtype, tokens)
        return found if self.factor is None else found * self.factor.to(found.dtype)
