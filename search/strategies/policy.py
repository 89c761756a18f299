"""Policy network of Woodpecker-DL and its PPO updates (PyTorch).

It has four fully connected layers (512, 1024, 1024, 512; tanh, tanh, selu, selu), dropout, and a linear layer whose
outputs are logits of the structure, and of each parameter of each structure. A linear layer beside them predicts the
value of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir import UsageError, install_command
from .search_domain import Array, Place

#: Widths of the layers as printed. The paper keeps 15 % of the activations in dropout; here 15 % are dropped: with six
#: points a batch, the printed rate learns nothing.
WIDTHS, DROPOUT = (512, 1024, 1024, 512), 0.15
#: Clipping of the surrogate loss, weights of the value loss and of the entropy. The paper prints the weights 0.15 and
#: 20; an entropy of 20 against rewards near 1 is random search, so it is a tenth of the value's here.
CLIP, VALUE, ENTROPY = 0.2, 0.15, 0.015
RATE, EPOCHS = 3e-4, 4


class KnobPolicy:
    """Policy over the points of all structures, with a value function."""

    def __init__(self, width: int, shapes: Sequence[Sequence[int]], seed: int) -> None:
        self._torch = torch = import_torch()
        self._shapes = [tuple(s) for s in shapes]
        self._starts, total = [], len(self._shapes)
        for shape in self._shapes:
            self._starts.append([total + sum(shape[:axis]) for axis in range(len(shape))])
            total += sum(shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers: list[Any] = []
            for before, after, act in zip(
                (width, *WIDTHS), WIDTHS, (torch.nn.Tanh, torch.nn.Tanh, torch.nn.SELU, torch.nn.SELU), strict=False
            ):
                layers += [torch.nn.Linear(before, after), act()]
            self._body = torch.nn.Sequential(*layers, torch.nn.Dropout(DROPOUT))
            self._logits = torch.nn.Linear(WIDTHS[-1], total)
            self._worth = torch.nn.Linear(WIDTHS[-1], 1)
            self._logits.weight.data *= 0.01
        self._weights = [*self._body.parameters(), *self._logits.parameters(), *self._worth.parameters()]
        self._optimizer = torch.optim.Adam(self._weights, lr=RATE)
        self._generator = torch.Generator().manual_seed(seed)

    def sample(self, state: Array, count: int) -> list[Place]:
        """Return points sampled from the policy."""
        torch = self._torch
        self._body.eval()
        with torch.no_grad():
            logits = self._logits(self._body(torch.as_tensor(state, dtype=torch.float32)[None]))[0]
        structures = self._sample(logits[: len(self._shapes)], count)
        found: list[Place] = [(0, ())] * count
        for position in np.unique(structures):
            rows = np.flatnonzero(structures == position)
            places = [
                self._sample(logits[start : start + extent], len(rows))
                for start, extent in zip(self._starts[position], self._shapes[position], strict=True)
            ]
            for number, row in enumerate(rows):
                found[row] = int(position), tuple(int(column[number]) for column in places)
        return found

    def worth(self, state: Array) -> float:
        """Return the expected reward of a state."""
        torch = self._torch
        self._body.eval()
        with torch.no_grad():
            return float(self._worth(self._body(torch.as_tensor(state, dtype=torch.float32)[None]))[0, 0])

    def update(self, states: Array, actions: Sequence[Place], advantages: Array, targets: Array) -> None:
        """Update the policy by the results of its actions."""
        torch = self._torch
        seen = torch.as_tensor(states, dtype=torch.float32)
        gained, wanted = (torch.as_tensor(a, dtype=torch.float32) for a in (advantages, targets))
        self._body.eval()
        with torch.no_grad():
            before, _ = self._log_probabilities(self._logits(self._body(seen)), actions)
        self._body.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(actions))
            for _ in range(EPOCHS):
                hidden = self._body(seen)
                now, entropy = self._log_probabilities(self._logits(hidden), actions)
                ratio = torch.exp(torch.clamp(now - before, -10.0, 10.0))
                clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
                gain = torch.minimum(ratio * gained, clipped * gained).mean()
                lost = ((self._worth(hidden)[:, 0] - wanted) ** 2).mean()
                loss = -(gain - VALUE * lost + ENTROPY * entropy.mean())
                self._optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
                self._optimizer.step()

    def _sample(self, logits: Any, count: int) -> Array:
        chances = self._torch.softmax(logits, 0)
        return np.asarray(self._torch.multinomial(chances, count, replacement=True, generator=self._generator))

    def _log_probabilities(self, logits: Any, actions: Sequence[Place]) -> tuple[Any, Any]:
        """Return the log-probability of each action, and the entropy of its distributions."""
        torch = self._torch
        logs, entropies = [], []
        for row, (structure, places) in zip(logits, actions, strict=True):
            parts = [torch.log_softmax(row[: len(self._shapes)], 0)]
            for start, extent in zip(self._starts[structure], self._shapes[structure], strict=True):
                parts.append(torch.log_softmax(row[start : start + extent], 0))
            logs.append(sum(part[place] for part, place in zip(parts, (structure, *places), strict=True)))
            entropies.append(sum(-(part.exp() * part).sum() for part in parts) / len(parts))
        return torch.stack(logs), torch.stack(entropies)


def import_torch() -> Any:
    """Return PyTorch.

    Raises `UsageError` where it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            "the strategy 'ppo' needs PyTorch", hint=f"{install_command('ppo')}, or use --strategy rank"
        ) from error
    return torch
