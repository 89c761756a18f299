"""Analysis of searches: audits of pruning, sweeps over samples, progress."""

from .audit import Audit, audit_choices
from .progress import Monitor, make_monitor
