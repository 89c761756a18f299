"""Models larger than GPU memory on clusters: strategies, predicted times, execution."""

from .connect import connect
from .measure import RunPrediction, StorageUtilisation, predict, storage_utilisation
from .planning import FORMS, Answer, RankedWay, Ranking, heat_map, rank, what_if
from .plans import (
    ClusterPlan,
    Transformer,
    hugging_face_transformer,
    known_machines,
    known_models,
    load_cluster_plan,
    load_machine,
    load_tokens,
    load_transformer,
    machine_text,
    save_cluster_plan,
    transformer_text,
)
from .prediction import simulate, size
from .probe import probe_machine
from .running import Report, Runner
from .storage import TensorCheckpoint, write_checkpoint
