"""Kernels of the embedding and of the head.

The head has no forward pass in training: its backward pass computes the scores once, for loss and gradients.
"""

from __future__ import annotations

import numpy as np

from ...backends import Array, Buffer, Pointer
from .layer import LayerKernels


class EndKernels(LayerKernels):
    """Process that computes layers of any kind."""

    def layer_forward(self, layer: int, x: Pointer, y: Pointer, inner: Buffer | None) -> None:
        """Compute a block or the embedding.

        Values for a block's backward pass are saved in `inner`, where it is given.
        """
        if self.kinds[layer] == "embedding":
            self.launch(self.embedding[0], {**self.places(layer), "x": x, "y": y})
        else:
            self.block_forward(layer, x, y, inner)

    def layer_backward(
        self, layer: int, places: tuple[Pointer, Pointer, Pointer], sums: tuple[Buffer, Buffer], inner: Buffer | None
    ) -> None:
        """Compute a layer's gradients, of a block as `block_backward` does.

        Of the head, the second place is the target, and `loss` is this micro-batch's part of the loss.
        """
        x, slope, dx = places
        given = {**self.places(layer), **self.sum_places(layer, sums), "x": x}
        if self.kinds[layer] == "embedding":
            self.launch(self.embedding[1], {**given, "dy": slope})
        elif self.kinds[layer] == "head":
            assert self.head is not None
            self.launch(self.head, {**given, "target": slope, "dx": dx, "loss": Pointer(self.scalars["loss"])})
        else:
            self.block_backward(layer, places, sums, inner)

    def next_token_scores(self, layer: int, x: Pointer) -> Array:
        """Return the scores of next tokens, [micro, vocabulary] of fp32."""
        assert self.head is not None and self.scores is not None
        self.launch(self.head, {**self.places(layer), "x": x, "y": Pointer(self.scores)})
        host = np.empty((self.way.micro, self.model.vocabulary), np.float32)
        self.transfers.download(host.reshape(-1).view(np.uint8), Pointer(self.scores))
        return host
