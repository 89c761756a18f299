"""Reinforcement learning of Woodpecker-DL, section 2.4, with one-step episodes.

The action is the whole configuration. The state consists of the operation (extents of all parameters of the space
instead of N, C, K, H, W, ...), the last configuration, and the moving average of run times (Equation 3). The reward is
the difference of that average and a point's time, clamped (Equation 4). Times are in units of the first one, so that a
weight means the same for every operation. Illegal samples are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from ..building import ScoredCandidate
from .policy import KnobPolicy
from .proposer import Observation, Proposer, fastest
from .search_domain import Array, place_of

#: Weights of the past in the moving average, of later rewards and of later estimates.
AVERAGE_DECAY, DISCOUNT, GAE_LAMBDA = 0.8, 0.99, 0.95
#: Points that are sampled for each requested one, and the number of attempts.
OVERSAMPLING, MAX_ATTEMPTS = 24, 6
#: Time of a failed point, in multiples of the moving average: the worst possible reward.
FAILURE_FACTOR = 2.0


@define
class Ppo(Proposer):
    """Propose samples of a policy that is trained during the search."""

    policy: KnobPolicy | None = field(default=None, init=False)
    learned: int = field(default=0, init=False)
    average: float = field(default=0.0, init=False)

    def propose(self, known: Sequence[Observation], best: float, count: int) -> list[ScoredCandidate]:
        """Return points sampled from the policy, trained on new results first."""
        if self.policy is None:
            self.policy = KnobPolicy(self._state(known).size, self.domain.shapes, self.seed)
        if not fastest(known, 1):
            return self.begin(best, count)
        self._learn(known)
        found: list[ScoredCandidate] = []
        for _ in range(MAX_ATTEMPTS):
            if len(found) < count:
                sampled = dict.fromkeys(self.policy.sample(self._state(known), OVERSAMPLING * count))
                legal = {place_of(p): p for p in self.domain.legal([p for p in sampled if p not in self.seen])}
                found += self.take(self.new_candidates(legal.values()), best, count - len(found))
        return found or self.take(self.new_candidates(self.random_order()), best, count)

    def _learn(self, known: Sequence[Observation]) -> None:
        assert self.policy is not None
        unit = next(k.seconds for k in known if np.isfinite(k.seconds))
        states, rewards = [], []
        for number in range(self.learned, len(known)):
            states.append(self._state(known[:number]))
            seconds = known[number].seconds / unit
            past = self.average if number else 1.0
            taken = seconds if np.isfinite(seconds) else FAILURE_FACTOR * past
            rewards.append(reward(past, taken))
            self.average = moving_average(past, taken, number + 1)
        if rewards:
            worths = np.asarray([self.policy.worth(s) for s in states])
            gained = np.asarray(
                [generalised_advantages([r], [w, 0.0])[0] for r, w in zip(rewards, worths, strict=True)]
            )
            actions = [place_of(k.point) for k in known[self.learned :]]
            scale = max(1e-6, float(gained.std())) if len(gained) > 1 else 1.0
            self.policy.update(np.asarray(states), actions, gained / scale, np.asarray(rewards))
        self.learned = len(known)

    def _state(self, known: Sequence[Observation]) -> Array:
        """Return the policy's input: the operation, the last configuration, the moving average."""
        longest = max((len(s) for s in self.domain.shapes), default=0)
        sizes = [float(np.mean([np.log1p(s[a]) for s in self.domain.shapes if a < len(s)])) for a in range(longest)]
        last = np.zeros(longest + 1)
        if known:
            point = known[-1].point
            shape = self.domain.shapes[point.structure]
            last[0] = point.structure / max(1, len(self.domain.shapes))
            last[1 : 1 + len(shape)] = [p / n for p, n in zip(point.places, shape, strict=True)]
        return np.asarray([*sizes, *last, self.average])


def moving_average(past: float, taken: float, step: int) -> float:
    """Return the moving average of times.

    Equation 3 divides by the step, by which the average of equal times falls towards zero, and every reward turns
    negative; it is read as an average that keeps 0.8 of the past.
    """
    return taken if step == 1 else AVERAGE_DECAY * past + (1 - AVERAGE_DECAY) * taken


def reward(past: float, taken: float) -> float:
    """Return the reward of a time, Equation 4."""
    return past - min(taken, 2 * past)


def generalised_advantages(rewards: Sequence[float], worths: Sequence[float]) -> list[float]:
    """Return the advantages of an episode's steps, Equations 5 and 6.

    `worths` has one more element than `rewards`.
    """
    found, later = [], 0.0
    for step in reversed(range(len(rewards))):
        later = rewards[step] + DISCOUNT * worths[step + 1] - worths[step] + DISCOUNT * GAE_LAMBDA * later
        found.append(later)
    return found[::-1]
