"""CUDA graphs: their edges, parallel branches and programmatic launches."""

from .branches import extend_capture
from .graph import capture_graph
from .programmatic_launch import enable_programmatic_launch
