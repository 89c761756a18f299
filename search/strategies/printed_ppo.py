"""Reinforcement learning of Woodpecker-DL as section 2.4 prints it.

The observation has 17 numbers: batch, channels, filters, filter and image sizes, stride and padding of the layer,
threads and tiles along three dims, the split of the reduction, and the moving average of times. An action sets one
parameter; a configuration takes one round for its schedule template and one for each parameter. The reward (Equation 4)
follows the last round, with the time of the configuration; earlier rounds have none.

`PRINTED_FORM` takes the moving average (Equation 3), the weights of the loss (Equation 7) and the dropout as printed.
`STEPWISE_FORM` is the same search with an average that keeps 0.8 of the past, a small entropy and a small dropout. Open
in the paper and chosen here: logarithms of the observation, standardised advantages, the order of the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from attrs import define, field, frozen

from ..building import ScoredCandidate
from ..learned import layer_numbers
from .policy import CLIP, DROPOUT, ENTROPY, EPOCHS, RATE, VALUE, WIDTHS, import_torch
from .ppo import AVERAGE_DECAY, FAILURE_FACTOR, MAX_ATTEMPTS, generalised_advantages, moving_average, reward
from .proposer import Observation, Proposer, fastest
from .search_domain import Array, Place, place_of

#: Dims with threads and tiles in the observation, and its numbers.
OBSERVED_DIMS, OBSERVED_NUMBERS = 3, 17
#: Configurations that are sampled for each requested one.
SAMPLES_PER_PROPOSAL = 8


@frozen
class PpoForm:
    """Dropped share, weight of the entropy, and form of the average."""

    dropout: float
    entropy: float
    printed_average: bool

    def average(self, past: float, taken: float, step: int) -> float:
        """Return the average after a time; Equation 3 divides by the step."""
        return (AVERAGE_DECAY * past + taken) / step if self.printed_average else moving_average(past, taken, step)


PRINTED_FORM = PpoForm(dropout=0.85, entropy=20.0, printed_average=True)
STEPWISE_FORM = PpoForm(dropout=DROPOUT, entropy=ENTROPY, printed_average=False)


@frozen
class Start:
    """Configuration that the rounds begin with, and the moving average then."""

    place: Place
    average: float


@define
class PrintedPpo(Proposer):
    """Propose configurations of a policy that sets one parameter a round."""

    form: ClassVar[PpoForm] = PRINTED_FORM
    policy: RoundPolicy | None = field(default=None, init=False)
    learned: int = field(default=0, init=False)
    average: float = field(default=0.0, init=False)
    starts: dict[Place, Start] = field(factory=dict, init=False)
    _layer: tuple[float, ...] = field(default=(), init=False)

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return sampled configurations, after training on new results."""
        if self.policy is None:
            self._layer = layer_numbers(self.domain.space.group)
            self.policy = RoundPolicy(self.domain.shapes, self.seed, self.form)
        if not fastest(known, 1):
            return self.take(self.new_candidates(self.random_order()), best, count)
        self._learn(known)
        start = Start(place_of(known[-1].point), self.average)
        found: list[ScoredCandidate] = []
        for _ in range(MAX_ATTEMPTS):
            if len(found) < count:
                sampled = dict.fromkeys(self._sample(start, SAMPLES_PER_PROPOSAL * count))
                legal = {place_of(p): p for p in self.domain.legal([p for p in sampled if p not in self.seen])}
                found += self.take(self.new_candidates(legal.values()), best, count - len(found))
        found = found or self.take(self.new_candidates(self.random_order()), best, count)
        self.starts |= {place_of(s.point): start for s in found if s.point is not None}
        return found

    def _sample(self, start: Start, count: int) -> list[Place]:
        """Return configurations, each sampled parameter by parameter."""
        assert self.policy is not None
        first = np.repeat(self._observe(start.place, start.average)[None], count, 0)
        structures = self.policy.choose(first, [(-1, 0)] * count)
        places = [begin_rounds(start.place, int(s), self.domain.shapes) for s in structures]
        for axis in range(max((len(s) for s in self.domain.shapes), default=0)):
            rows = [k for k, (s, _) in enumerate(places) if axis < len(self.domain.shapes[s])]
            if not rows:
                break
            states = np.stack([self._observe(places[k], start.average) for k in rows])
            for k, choice in zip(rows, self.policy.choose(states, [(places[k][0], axis) for k in rows]), strict=True):
                places[k] = set_parameter(places[k], axis, int(choice))
        return places

    def _learn(self, known: Sequence[Observation]) -> None:
        """Update the policy by the rounds of each new configuration."""
        assert self.policy is not None
        unit = next(k.seconds for k in known if np.isfinite(k.seconds))
        states: list[Array] = []
        blocks: list[tuple[int, int]] = []
        choices: list[int] = []
        advantages: list[float] = []
        targets: list[float] = []
        for number in range(self.learned, len(known)):
            seconds, place = known[number].seconds / unit, place_of(known[number].point)
            taken = seconds if np.isfinite(seconds) else FAILURE_FACTOR * max(self.average, 1.0)
            gained = reward(self.average, taken)
            self.average = self.form.average(self.average, taken, number + 1)
            if place not in self.starts:
                continue
            rounds = list(self._rounds(self.starts[place], place))
            seen = np.stack([state for state, _, _ in rounds])
            rewards = [0.0] * (len(rounds) - 1) + [gained]
            worths = [*self.policy.worths(seen), 0.0]
            found = generalised_advantages(rewards, worths)
            states.append(seen)
            blocks += [block for _, block, _ in rounds]
            choices += [choice for _, _, choice in rounds]
            advantages += found
            targets += [a + w for a, w in zip(found, worths, strict=False)]
        self.learned = len(known)
        if states:
            scale = np.asarray(advantages)
            standard = (scale - scale.mean()) / max(1e-6, float(scale.std()))
            self.policy.update(np.concatenate(states), blocks, choices, standard, np.asarray(targets))

    def _rounds(self, start: Start, place: Place) -> Any:
        """Yield observation, block and choice of each round that leads to a configuration."""
        structure, places = place
        yield self._observe(start.place, start.average), (-1, 0), structure
        now = begin_rounds(start.place, structure, self.domain.shapes)
        for axis, choice in enumerate(places):
            yield self._observe(now, start.average), (structure, axis), choice
            now = set_parameter(now, axis, choice)

    def _observe(self, place: Place, average: float) -> Array:
        """Return the 17 numbers of a configuration, as logarithms."""
        structure, places = place
        values: dict[str, int] = {}
        for parameter, position in zip(self.domain.space.templates[structure].parameters, places, strict=True):
            values.update({n.rpartition(".")[2]: v for n, v in zip(parameter.names, parameter.values[position],
                                                                  strict=True)})  # fmt: skip
        dims = sorted((int(name[1:]) for name in values if name[0] == "t" and name[1:].isdigit()), reverse=True)
        dims = [*dims, *(-1,) * OBSERVED_DIMS][:OBSERVED_DIMS]
        tiles = [values.get(f"{kind}{d}", 1) for kind in "te" for d in dims]
        return np.log1p(np.abs([*self._layer, *tiles, values.get("c0", 1), average]))


class StepwisePpo(PrintedPpo):
    """Propose as `PrintedPpo`, with the weights and the average of `Ppo`."""

    form: ClassVar[PpoForm] = STEPWISE_FORM


def begin_rounds(place: Place, structure: int, shapes: Sequence[tuple[int, ...]]) -> Place:
    """Return a configuration with another structure, whose parameters stand in the middle."""
    return place if place[0] == structure else (structure, tuple(n // 2 for n in shapes[structure]))


def set_parameter(place: Place, axis: int, choice: int) -> Place:
    """Return a configuration with one parameter changed."""
    return place[0], (*place[1][:axis], choice, *place[1][axis + 1 :])


class RoundPolicy:
    """Policy over the values of one parameter, with a value function (PyTorch).

    Block (-1, 0) are the logits of the structure, (s, a) those of parameter `a` of structure `s`.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], seed: int, form: PpoForm) -> None:
        self._torch = torch = import_torch()
        self._form, total = form, len(shapes)
        self._blocks = {(-1, 0): (0, total)}
        for structure, shape in enumerate(shapes):
            for axis, extent in enumerate(shape):
                self._blocks[structure, axis] = total, extent
                total += extent
        acts = (torch.nn.Tanh, torch.nn.Tanh, torch.nn.SELU, torch.nn.SELU)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = zip((OBSERVED_NUMBERS, *WIDTHS), WIDTHS, acts, strict=False)
            layers = [layer for before, after, act in widths for layer in (torch.nn.Linear(before, after), act())]
            self._body = torch.nn.Sequential(*layers, torch.nn.Dropout(form.dropout))
            self._logits, self._worth = torch.nn.Linear(WIDTHS[-1], total), torch.nn.Linear(WIDTHS[-1], 1)
            self._logits.weight.data *= 0.01
        self._weights = [*self._body.parameters(), *self._logits.parameters(), *self._worth.parameters()]
        self._optimizer = torch.optim.Adam(self._weights, lr=RATE)
        self._generator = torch.Generator().manual_seed(seed)

    def choose(self, states: Array, blocks: Sequence[tuple[int, int]]) -> Array:
        """Return a sampled choice for each state, within its block."""
        torch = self._torch
        self._body.eval()
        with torch.no_grad():
            logits = self._mask(self._logits(self._features(states)), blocks)
            chosen = torch.multinomial(torch.softmax(logits, 1), 1, generator=self._generator)[:, 0]
        return np.asarray(chosen - torch.as_tensor([self._blocks[block][0] for block in blocks]))

    def worths(self, states: Array) -> list[float]:
        """Return the expected reward of each state."""
        self._body.eval()
        with self._torch.no_grad():
            found: list[float] = self._worth(self._features(states))[:, 0].tolist()
        return found

    def update(
        self,
        states: Array,
        blocks: Sequence[tuple[int, int]],
        choices: Sequence[int],
        advantages: Array,
        targets: Array,
    ) -> None:
        """Update the policy by the rounds of some configurations (Equation 7)."""
        torch = self._torch
        gained, wanted = (torch.as_tensor(a, dtype=torch.float32) for a in (advantages, targets))
        places = torch.as_tensor([self._blocks[b][0] + c for b, c in zip(blocks, choices, strict=True)])[:, None]

        def logs(hidden: Any) -> Any:
            return torch.log_softmax(self._mask(self._logits(hidden), blocks), 1)

        self._body.eval()
        with torch.no_grad():
            before = logs(self._features(states)).gather(1, places)[:, 0]
        self._body.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(choices))
            for _ in range(EPOCHS):
                hidden = self._features(states)
                every = logs(hidden)
                ratio = torch.exp(torch.clamp(every.gather(1, places)[:, 0] - before, -10.0, 10.0))
                gain = torch.minimum(ratio * gained, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * gained).mean()
                lost = ((self._worth(hidden)[:, 0] - wanted) ** 2).mean()
                entropy = -(every.exp() * every.clamp(min=-50.0)).sum(1).mean()
                loss = -(gain - VALUE * lost + self._form.entropy * entropy)
                self._optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
                self._optimizer.step()

    def _features(self, states: Array) -> Any:
        return self._body(self._torch.as_tensor(states, dtype=self._torch.float32))

    def _mask(self, logits: Any, blocks: Sequence[tuple[int, int]]) -> Any:
        """Return logits that are finite only within a row's block."""
        inside = self._torch.zeros(logits.shape, dtype=self._torch.bool)
        for row, block in enumerate(blocks):
            start, extent = self._blocks[block]
            inside[row, start : start + extent] = True
        return logits.masked_fill(~inside, -1e9)
