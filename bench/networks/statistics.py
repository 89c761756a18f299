"""Norms of networks with random weights, so that numbers neither vanish nor grow on their way."""

from __future__ import annotations

from typing import Any

#: Images that batch norms learn statistics from, at most.
IMAGES = 8


def settled(model: Any, images: Any, torch: Any) -> Any:
    """Return a network in evaluation mode whose batch norms have the statistics of some images: with those that they
    begin with, numbers fall below what half types hold, and errors would say nothing.
    """
    for part in model.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.momentum = 1.0  # what is seen replaces what was there
    seen = images[:IMAGES] if len(images) > 1 else torch.randn(2, *images.shape[1:])  # one value has no variance
    with torch.no_grad():
        model.train()(seen)
    return model.eval()
