"""Training: forward, backward and an optimiser's step in one graph."""

from .optimisers import SGD, Adam
from .training import Training, grad

__all__ = ["SGD", "Adam", "Training", "grad"]
