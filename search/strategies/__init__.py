"""Strategies: which points of a space to measure next, given what was measured so far. Each is known by a name.

* rank: the best points by the model, then the neighbours of the best measured ones, best by the model first.
* random: legal points drawn at random, for comparison.
* genetic: crossing and mutation of the fastest measured points, on top of the model's first choice.
* genetic-printed: the genetic search of Woodpecker-DL as its section 2.3 prints it.
* ppo: the learned policy of Woodpecker-DL's section 2.4 (PyTorch).
* bayes: expected gain by a surrogate of the measured times.
* frugal: bayes, which ends when the surrogate expects no gain that could be told from noise; what is searched by if
  nothing else is said.
* thorough: bayes, which looks at points anywhere, too; what deeper searches go on with.

All of them are deterministic: the same measurements lead to the same proposals.
"""

from .catalogue import STRATEGIES, make_strategy, strategy_on
from .corrected import CorrectedSpace
from .ground import FullSpace, Ground, Place, place_of
from .proposer import Known, Proposer, Strategy
from .worker import ProposalRequest, ProposingFactory, request_behind, request_of

__all__ = [
    "STRATEGIES",
    "CorrectedSpace",
    "FullSpace",
    "Ground",
    "Known",
    "Place",
    "ProposalRequest",
    "Proposer",
    "ProposingFactory",
    "Strategy",
    "make_strategy",
    "place_of",
    "request_behind",
    "request_of",
    "strategy_on",
]
