"""Clusters, layers and ways to run them: descriptions, sizes and files."""

from .batches import Batches, load_tokens, random_batches
from .descriptions import KINDS, MAX_GPUS, BlockTimes, Machine
from .files import known_machines, known_models, load_machine, load_transformer, machine_text, transformer_text
from .hugging_face import hugging_face_transformer
from .plan_file import ClusterPlan, load_cluster_plan, save_cluster_plan
from .sizes import Links, Sizes, layer_kinds, links, sizes, time_source
from .terms import Terms, zeros
from .transformer import MOMENTS, Transformer
from .ways import ACTIVATIONS, POLICIES, RESIDENT, Column, Way, Ways, all_ways, columns
