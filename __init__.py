"""A deep-learning compiler: operations declared once, everything else derived.

plan = cuts.build("model.onnx", target="opencl", shapes={"x": (1, 3, 224, 224)})
y = plan.run({"x": array})
plan.save("plan/"); plan = cuts.load("plan/")
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

#: The version; pyproject.toml reads it from here.
__version__ = "0.2.0"

if TYPE_CHECKING:
    from .compile import CompiledPlan, DynamicPlan, load, torch_op
    from .compile.build import build, build_staged
    from .frontends import graph_from_json, load_graph, save_graph
    from .ir import CutsError, Dim, DType, Graph, KernelFunction, Node, TensorType
    from .ops import Registry
    from .passes.graph import with_loss
    from .runtime import LaunchParameters
    from .runtime.native import PackedPlan
    from .training import SGD, Adam, Training, grad, in_training

__all__ = [
    "SGD", "Adam", "CompiledPlan", "CutsError", "DType", "Dim", "DynamicPlan", "Graph", "KernelFunction",
    "LaunchParameters", "Node", "PackedPlan", "Registry", "TensorType", "Training", "__version__", "build",
    "build_staged", "grad", "graph_from_json", "in_training", "load", "load_graph", "save_graph", "torch_op",
    "with_loss",
]  # fmt: skip

#: Package -> the public names it is home to.
_HOMES = {
    ".compile": ("CompiledPlan", "DynamicPlan", "load", "torch_op"),
    ".compile.build": ("build", "build_staged"),  # a module whose name its package has
    ".frontends": ("graph_from_json", "load_graph", "save_graph"),
    ".ir": ("CutsError", "DType", "Dim", "Graph", "KernelFunction", "Node", "TensorType"),
    ".ops": ("Registry",),
    ".passes.graph": ("with_loss",),
    ".runtime": ("LaunchParameters",),
    ".runtime.native": ("PackedPlan",),
    ".training": ("SGD", "Adam", "Training", "grad", "in_training"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    """Import a public name at its first use, so that `import cuts.ir` loads only its own modules."""
    if name not in _HOME:
        raise AttributeError(f"module 'cuts' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
