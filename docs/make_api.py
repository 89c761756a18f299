"""Writes `docs/reference/python_api.md`, the public names of `cuts`, from docstrings: `python docs/make_api.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

import cuts

DOCUMENT = Path(__file__).parent / "reference" / "python_api.md"
WIDTH = 120
HEAD = """# Python interface

Written by `docs/make_api.py` from the docstrings: the public names of `cuts`. A name is imported when it is first used,
so `import cuts` is quick. The examples run in order; [the tutorials](../tutorials/your_model_faster.md) show them in
use. `cuts.latency` predicts times ([tutorial](../tutorials/predict_and_plan.md)); `cuts.ir` has the classes of
[errors](errors.md).
"""
#: The order of the document: an example for each public name.
EXAMPLES = {
    "build": """plan = cuts.build("examples/rms.json", target="opencl", spec=["examples/rms.cuts"])""",
    "CompiledPlan": """y = plan.run(plan.random_inputs(seed=1))["y"]
assert all(result.ok for result in plan.verify())
plan.save("rms.plan")""",
    "Dim": """rows = cuts.Dim("rows", 1, 64)""",
    "DynamicPlan": """shapes = {name: (rows, 33) for name in ("x", "residual")}
ranged = cuts.build("examples/rms.json", spec=["examples/rms.cuts"], shapes=shapes)
y = ranged.run(ranged.random_inputs(sizes={"rows": 5}))["y"]""",
    "PackedPlan": """plan.pack("rms.cutsplan")
packed = cuts.PackedPlan("rms.cutsplan")
y = packed.run(packed.random_inputs(seed=1))["y"]""",
    "load": """plan = cuts.load("rms.plan")""",
    "build_staged": """staged = cuts.build_staged("model.onnx", "opencl", shapes={"x": (1, 3, 16, 16)})""",
    "load_graph": """graph = cuts.load_graph("examples/perceptron.json")""",
    "save_graph": """cuts.save_graph(graph, "copy.json")""",
    "graph_from_json": """with open("copy.json") as file:
    graph = cuts.graph_from_json(file.read())""",
    "Graph": """print(graph.inputs, graph.outputs, graph.types["y"])""",
    "Node": """print([node.op for node in graph.nodes])""",
    "TensorType": """row = cuts.TensorType(cuts.DType.F32, (1, 64))
print(row, row.nbytes, row.strides)""",
    "DType": """print([kind.value for kind in cuts.DType], cuts.DType.F32.size)""",
    "KernelFunction": """for kernel in plan.kernels:
    print(kernel.name, kernel.grid, kernel.block, [argument.tensor for argument in kernel.arguments])""",
    "LaunchParameters": """for launch in plan.launches:
    print(launch.kernel.name, [(argument.tensor, argument.offset) for argument in launch.arguments])""",
    "Registry": """registry = cuts.Registry.builtin()
print(len(list(registry)), registry["softmax"].attributes)""",
    "with_loss": """loss = cuts.with_loss(graph, "cross_entropy")""",
    "in_training": """form = cuts.in_training(loss)""",
    "grad": """training = cuts.grad(form.graph, "loss", wrt=["w1"], updates=form.updates, optimiser=cuts.SGD())""",
    "SGD": """optimiser = cuts.SGD(rate=0.1, momentum=0.9)""",
    "Adam": """optimiser = cuts.Adam(rate=0.001, weight_decay=0.01, decoupled=True)""",
    "Training": """training = cuts.grad(loss, loss="loss", wrt=["w1", "w2"], optimiser=optimiser)
plan = training.build("opencl")
print(training.carried, sorted(training.initial))""",
    "torch_op": """scale = cuts.torch_op("examples/rms.cuts")  # torch.ops.cuts.root_mean_square_scale""",
    "CutsError": """try:
    cuts.build("examples/rms.json", target="cuda:none")
except cuts.CutsError as error:
    print(error.message, error.hint, error.exit_code)""",
    "__version__": """print(cuts.__version__)""",
}
#: Classes that other calls make, and those of their members that the document lists.
MEMBERS = {
    "CompiledPlan": "run verify reference random_inputs save pack inputs outputs target kernels launches arena offset "
    "constants state set_state reset_state",
    "Dim": "",
    "DynamicPlan": "run verify reference random_inputs save inputs outputs",
    "PackedPlan": "run new_session random_inputs inputs outputs states state",
    "Training": "build run step reference save",
    "Graph": "",
    "Node": "",
    "TensorType": "strides",
    "DType": "",
    "KernelFunction": "",
    "LaunchParameters": "",
    "Registry": "",
    "CutsError": "",
}
#: Names whose example needs a package that is optional.
NEEDS = {"torch_op": "torch", "build_staged": "onnx"}


def paragraphs(value: object, count: int | None = None) -> Iterator[str]:
    """Yield the first paragraphs of a docstring, without its errors."""
    for text in re.split(r"\n\s*\n", inspect.getdoc(value) or "")[:count]:
        if text.startswith("Raises "):
            continue
        yield from wrap(" ".join(text.split()), WIDTH, break_on_hyphens=False)
        yield ""


def signature(name: str, value: object) -> Iterator[str]:
    """Yield a call without types."""
    parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    shown = [str(p.replace(annotation=p.empty)) for p in parameters]
    keyword = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if keyword is not None:
        shown.insert(keyword, "*")
    yield from wrap(f"`cuts.{name}({', '.join(shown)})`", WIDTH, break_on_hyphens=False)
    yield ""


def members(value: type, names: str) -> Iterator[str]:
    """Yield a row for each named member of a class."""
    for name in names.split():
        member = inspect.getattr_static(value, name)
        text = " ".join((inspect.getdoc(member) or "").split())
        row = f"| `{name}{'()' * callable(member)}` | {re.split(r'(?<=[a-z`])[.;] ', text)[0].rstrip('.')} |"
        yield row if len(row) <= WIDTH else f"{row.partition(': ')[0]} |"


def entry(name: str) -> Iterator[str]:
    """Yield the entry of a public name."""
    value = getattr(cuts, name)
    yield from (f"## `cuts.{name}`", "")
    if name in MEMBERS:
        yield from paragraphs(value, 1 if MEMBERS[name] else None)
        if MEMBERS[name]:
            yield from ("| member | meaning |", "|---|---|", *members(value, MEMBERS[name]), "")
    elif callable(value):
        yield from signature(name, value)
        yield from paragraphs(value)
    if name in NEEDS:
        yield f"<!-- needs: {NEEDS[name]} -->"
    yield from (
        "```python",
        *["import cuts", ""] * (name == next(iter(EXAMPLES))),
        *EXAMPLES[name].split("\n"),
        "```",
        "",
    )


def document() -> str:
    """Return the whole document."""
    lines = [HEAD]
    for name in EXAMPLES:
        lines += entry(name)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
