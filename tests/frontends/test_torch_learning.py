"""Small networks under autocast learn from packaged data as in eager PyTorch.

A transformer of images learns scikit-learn's digits, one of characters the texts of Python's `help`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import needs_cuda, needs_opencl

nn, F = torch.nn, torch.nn.functional
#: Steps of a run, those whose losses are compared, and seeds; by day a processor takes few.
WHOLE, BY_DAY = (200, 20, (0, 1, 2)), (4, 2, (0,))
WIDTH, BATCH, TOKENS, CHARACTERS = 32, 32, 32, 128


class Network(nn.Module):  # type: ignore[misc, name-defined]
    """Transformer of embedded tokens; a classifier without, a decoder with causal attention."""

    def __init__(self, embed: Any, tokens: int, classes: int, is_causal: bool, layers: int) -> None:
        super().__init__()
        self.embed, self.is_causal = embed, is_causal
        self.places = nn.Parameter(torch.randn(tokens, WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, F.gelu, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Any, target: Any) -> Any:
        h = self.embed(x) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(h.shape[1], device=h.device) if self.is_causal else None
        for layer in self.layers:
            h = layer(h, mask, is_causal=self.is_causal)
        scores = self.head(h if self.is_causal else h.mean(1))
        return F.cross_entropy(scores.flatten(0, -2).float(), target.flatten())


def layers_of(steps: int) -> int:
    return 2 if steps >= WHOLE[0] else 1


def make_images(steps: int) -> tuple[Any, Iterator[Any]]:
    """Return a classifier of digits in patches of 2x2, and batches."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = torch.tensor(digits.images / 16).float(), torch.tensor(digits.target)
    patches = images.unfold(1, 2, 2).unfold(2, 2, 2).flatten(1, 2).flatten(2)
    chosen = (torch.randint(len(labels), (BATCH,)) for _ in range(steps))
    return Network(nn.Linear(4, WIDTH), 16, 10, False, layers_of(steps)), ((patches[at], labels[at]) for at in chosen)


def make_text(steps: int) -> tuple[Any, Iterator[Any]]:
    """Return a decoder of characters, and batches of texts."""
    topics = pytest.importorskip("pydoc_data.topics").topics
    text = torch.tensor([min(ord(c), CHARACTERS - 1) for c in "".join(topics.values())])
    begins = (torch.randint(len(text) - TOKENS - 1, (BATCH, 1)) + torch.arange(TOKENS) for _ in range(steps))
    return Network(nn.Embedding(CHARACTERS, WIDTH), TOKENS, CHARACTERS, True, layers_of(steps)), (
        (text[at], text[at + 1]) for at in begins
    )


def train(network: Any, batches: Any, device: str, call: Any = None) -> tuple[Any, list[Any]]:
    """Train a copy of a network; return losses and parameters."""
    network = copy.deepcopy(network).to(device)
    run = call or (lambda network, *batch: network(*batch))
    optimiser, losses = torch.optim.AdamW(network.parameters(), 3e-3), []
    for batch in batches:
        optimiser.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = run(network, *(each.to(device) for each in batch))
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), [parameter.detach() for parameter in network.parameters()]


def compare(make: Any, device: str, steps: int, last: int, seeds: tuple[int, ...]) -> None:
    """Compare the last losses of several seeds with eager ones.

    The tolerance is the difference that slightly other first weights make in eager steps.
    """
    torch._dynamo.reset()
    call = torch.compile(lambda network, *batch: network(*batch), backend=cuts_backend)
    means = list[list[Any]]()
    for seed in seeds:
        torch.manual_seed(seed)
        network, batches = make(steps)
        batches = list(batches)
        found, parameters = train(network, batches, device, call)
        again, others = train(network, batches[:10], device, call)
        assert torch.equal(again, found[:10])  # the same bits
        assert len(batches) > 10 or all(map(torch.equal, parameters, others))
        eager = train(network, batches, device)[0]
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1 + 1e-2 * torch.randn_like(parameter))
        shaken = train(network, batches, device)[0]
        means.append([losses[-last:].mean().item() for losses in (found, eager, shaken)])
    ours, same, moved = torch.tensor(means).T
    noise = (moved - same).abs().max() + 1e-3 * same.max()
    assert (ours - same).abs().max() <= 2 * noise, means
    assert (ours.mean() - same.mean()).abs() <= noise, means


@needs_opencl
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [make_images, make_text] if NIGHTLY else [make_images])
def test_losses_are_those_of_eager(make: Any) -> None:
    compare(make, "cpu", *(WHOLE if NIGHTLY else BY_DAY))


@needs_cuda
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [make_images, make_text])
def test_losses_on_a_gpu_are_those_of_eager(make: Any) -> None:
    compare(make, "cuda", *WHOLE)
