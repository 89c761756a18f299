"""A deep-learning compiler: operations declared once, everything else derived.

plan = cuts.build("model.onnx", target="opencl", shapes={"x": (1, 3, 224, 224)})
y = plan.run({"x": array})
plan.save("plan/"); plan = cuts.load("plan/")
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .driver import CompiledPlan, build, load
    from .frontends.graph_json import graph_from_json, load_graph, save_graph
    from .ir.errors import CutsError
    from .ir.graph import Graph, Node
    from .ops import Registry
    from .optimisers import SGD, Adam
    from .passes.attach_loss import with_loss
    from .split import build_split
    from .training import Training, grad

__all__ = [
    "SGD", "Adam", "CompiledPlan", "CutsError", "Graph", "Node", "Registry", "Training", "build", "build_split", "grad",
    "graph_from_json", "load", "load_graph", "save_graph", "with_loss",
]  # fmt: skip

_HOMES = {
    "CompiledPlan": ".driver", "build": ".driver", "load": ".driver", "CutsError": ".ir.errors",
    "build_split": ".split", "Graph": ".ir.graph", "Node": ".ir.graph", "Registry": ".ops", "graph_from_json": ".frontends.graph_json",
    "Adam": ".optimisers", "SGD": ".optimisers", "Training": ".training", "grad": ".training", "with_loss": ".passes.attach_loss",
    "load_graph": ".frontends.graph_json", "save_graph": ".frontends.graph_json",
}  # fmt: skip

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import cuts.ir` costs only what it needs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cuts' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value
