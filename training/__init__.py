"""Training: forward, backward and an optimiser's step in one graph."""

from .checkpoint import Checkpoint, load_checkpoint
from .optimisers import SGD, Adam
from .training import Training, grad
from .training_form import TrainingForm, in_training

__all__ = ["SGD", "Adam", "Checkpoint", "Training", "TrainingForm", "grad", "in_training", "load_checkpoint"]
