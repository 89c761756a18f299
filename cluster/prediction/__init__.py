"""Predicted times and memory of cluster plans, by formulas and simulation."""

from .closed_form import corrected_terms
from .feasibility import Feasibility, fit, infeasibility_reasons, size
from .memory import CHUNK_PARAMETERS, in_flight_results
from .schedule import LayerPass, adds_to_same, arrivals, order, placement
from .simulation import simulate
from .stages import PipelineStage
