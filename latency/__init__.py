"""Latency prediction of layers and kernels by models fitted to profiles.

Prediction needs no GPU:

cuts.latency.predict("conv2d", {"N": 16, "C": 64, "H": 56, "K": 128, "R": 3}, "h200").us
"""

from .buckets import Bucket, Plateau, buckets, plateaus
from .compiled_kernels import OwnKernels, find_own_kernels, find_own_plans, find_predictor, planned_launches, predict
from .dataset import known_profiles
from .models import ModelPrediction, predict_model
from .plotting import Line, check_suffix, plot
from .predictor import PRECISIONS, STATES, Prediction
from .sweeps import Curve, sweep
