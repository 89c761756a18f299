"""Layer-by-layer execution of torchvision networks, with marker kernels.

Networks are PyTorch graphs, with a marker kernel around each layer.

Batch norms are folded into convolutions, as in a file for inference, and no operation works in place. A layer reads its
input where the previous layer wrote it, so part of it may be in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

#: Networks that nothing is fitted on.
UNKNOWN = (
    "alexnet",
    "vgg16",
    "resnet18",
    "resnet101",
    "wide_resnet50_2",
    "googlenet",
    "squeezenet1_1",
    "densenet121",
    "mobilenet_v2",
    "efficientnet_b0",
)
_IN_PLACE = "iadd", "imul"


def load(name: str, torch: Any, device: str) -> Any:
    """Return a network as a folded PyTorch graph, without in-place operations.

    Weights are random.
    """
    models = import_module("torchvision.models")
    extra = {"init_weights": False, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    with torch.device(device):
        model = models.get_model(name, weights=None, **extra).eval()
    graph = import_module("torch.fx.experimental.optimization").fuse(model)
    for module in graph.modules():
        if getattr(module, "inplace", False):
            module.inplace = False
    operator = import_module("operator")
    for node in graph.graph.nodes:
        if node.kwargs.get("inplace"):
            node.kwargs = {**node.kwargs, "inplace": False}
        if node.op == "call_function" and node.target.__name__ in _IN_PLACE:
            node.target = getattr(operator, node.target.__name__[1:])
    graph.recompile()
    return graph.eval()


def image_size(name: str) -> int:
    """Return the height and width of a network's input."""
    return 299 if name == "inception_v3" else 224


def interpreter(graph: Any, mark: Callable[[], None], torch: Any) -> Any:
    """Return an interpreter of a graph with markers around each node.

    Its `run(x)` runs the graph; `layers` lists the executed nodes.
    """

    class Marked(torch.fx.Interpreter):  # type: ignore[misc]
        layers: list[dict[str, Any]]

        def run_node(self, node: Any) -> Any:
            if node.op not in ("call_module", "call_function", "call_method"):
                return super().run_node(node)
            mark()
            result = super().run_node(node)
            mark()
            self.layers.append(_describe(self, node, result))
            return result

    return Marked(graph)


def _describe(runner: Any, node: Any, result: Any) -> dict[str, Any]:
    """Return a node's operation, its attributes, and the shapes of its operands and results."""
    operands = [runner.env[each] for each in node.all_input_nodes if each in runner.env]
    inputs = [list(value.shape) for value in operands if hasattr(value, "shape")]
    if node.op == "call_module":
        module = runner.module.get_submodule(node.target)
        target, attributes = type(module).__name__, dict(_attributes(module))
    else:
        target = node.target if isinstance(node.target, str) else node.target.__name__
        attributes = {
            "arguments": [a for a in node.args if isinstance(a, (int, float, tuple)) and not _has_node(a)],
            **_plain(node.kwargs),
        }
    found = result if isinstance(result, (list, tuple)) else (result,)
    outputs = [list(value.shape) for value in found if hasattr(value, "shape")]
    return {"name": node.name, "target": target, "attributes": attributes, "inputs": inputs, "outputs": outputs}


def _plain(values: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float, str, bool, tuple)) and not _has_node(value)
    }


def _has_node(value: Any) -> bool:
    return isinstance(value, tuple) and any(not isinstance(each, (int, float)) for each in value)


_NAMES = (
    "in_channels",
    "out_channels",
    "in_features",
    "out_features",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
    "output_size",
    "ceil_mode",
)


def _attributes(module: Any) -> Iterator[tuple[str, Any]]:
    for name in _NAMES:
        if hasattr(module, name):
            yield name, getattr(module, name)
    if hasattr(module, "bias"):
        yield "bias", module.bias is not None
