"""Strategies: propose the next points of a space from earlier measurements.

Each has a name:

|* rank: the best points by the cost model, then the neighbours of the best measured ones, by the cost model.
|* random: legal points drawn at random, for comparison.
|* genetic: crossover and mutation of the fastest measured points, after the cost model's first choice.
|* genetic-printed: the genetic search of Woodpecker-DL as its section 2.3 prints it.
|* ppo: the learned policy of Woodpecker-DL's section 2.4 (PyTorch).
|* bayes: expected improvement by a surrogate of the measured times.
|* frugal: bayes with early stop, when the surrogate expects no gain beyond noise; the default.
|* thorough: bayes over the whole space, for deeper searches.

All of them are deterministic: the same measurements lead to the same proposals.
"""

from .catalogue import STRATEGIES, make_strategy, strategy_on
from .proposer import Observation, Proposer, Strategy
from .search_domain import FullSpace, Place, place_of
from .worker import ProposalRequest, ProposingFactory, next_request, request_of
