"""Models larger than GPU memory on clusters: strategies, predicted times, execution."""

from .connect import connect
from .feasibility import size
from .files import known_machines, known_models, load_machine, load_transformer, machine_text
from .heat_map import heat_map
from .measure import RunPrediction, StorageUtilisation, predict, storage_utilisation
from .plan_file import ClusterPlan, load_cluster_plan, save_cluster_plan
from .planner import FORMS, RankedWay, Ranking, rank
from .probe import probe_machine
from .running import Report, Runner
from .simulation import simulate
from .what_if import Answer, what_if

__all__ = [
    "FORMS",
    "Answer",
    "ClusterPlan",
    "RankedWay",
    "Ranking",
    "Report",
    "RunPrediction",
    "Runner",
    "StorageUtilisation",
    "connect",
    "heat_map",
    "known_machines",
    "known_models",
    "load_cluster_plan",
    "load_machine",
    "load_transformer",
    "machine_text",
    "predict",
    "probe_machine",
    "rank",
    "save_cluster_plan",
    "simulate",
    "size",
    "storage_utilisation",
    "what_if",
]
