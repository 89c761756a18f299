"""Simplification of graphs: equal values, constants, movement, affine operations."""

from .canonicalise import Canonicalise, canonical_passes
from .sink_broadcasts import SinkBroadcasts
