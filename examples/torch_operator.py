"""Train a PyTorch model with an operator declared in `rms.cuts`.

Run `python examples/torch_operator.py`.

The operator has kernels for the CPU (through OpenCL) and for NVIDIA GPUs, a shape function, and a gradient derived from
the declaration; so `torch.compile` and `torch.export` take it as one of their own.
"""

from __future__ import annotations

from pathlib import Path

import cuts
import torch

STEPS = 200
scale = cuts.torch_op(Path(__file__).parent / "rms.cuts")


class Classifier(torch.nn.Module):
    """Two linear layers with the operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(2, 32), torch.nn.Linear(32, 2)
        self.weight = torch.nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two scores for each point of [N, 2]: outside, and inside.

        Inside and outside are those of the circle.
        """
        scores: torch.Tensor = self.last(torch.relu(scale(self.first(x), self.weight)))
        return scores


def main() -> None:
    """Train, and say how well it went."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Classifier().to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for number in range(1, STEPS + 1):
        x = torch.rand(256, 2, device=device) * 2 - 1
        inside = (x.square().sum(1) < 0.5).long()
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores, inside)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        if number % 50 == 0:
            right = (scores.argmax(1) == inside).float().mean()
            print(f"step {number:3d}: loss {loss.item():.3f}, {right:.0%} of the batch right")


if __name__ == "__main__":
    main()
