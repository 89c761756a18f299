"""Search for cluster plans, and reports of it."""

from .heat_map import heat_map
from .planner import FORMS, RankedWay, Ranking, rank
from .what_if import Answer, what_if
