"""Training: forward, backward and an optimiser's step in one graph."""

from .checkpoint import Checkpoint, load_checkpoint
from .optimisers import SGD, Adam
from .training import Training, grad
from .training_form import in_training
