"""Real models import, verify, canonicalise, and compute ONNX Runtime's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.frontends.graph_json import load_graph, save_graph
from cuts.ir.graph import Graph
from cuts.ir.text import parse_graph, print_graph
from cuts.ir.verify.graph import verify_graph
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.passes.graph.simplification.canonicalise import Canonicalise
from cuts.tests import models
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import DEVICES

onnx = pytest.importorskip("onnx")
pytestmark = [pytest.mark.as_users_build, pytest.mark.long]
INFER = Registry.builtin().instances.infer


def load(path: Path) -> Graph:
    from cuts.frontends.onnx.load import load_onnx

    return load_onnx(path, {"x": (1, 3, 48, 192)} if path.stem.endswith("cls_infer") else None)


@pytest.mark.parametrize("path", models.light_models(), ids=lambda path: path.stem)
def test_light_models_import_with_expected_shapes(path: Path) -> None:
    graph = Canonicalise(Registry.builtin().instances).run(load(path))
    verify_graph(graph, INFER)
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    assert graph.types[graph.outputs[0]].shape == tuple(expected.dims)
    assert parse_graph(print_graph(graph), graph.constants) == graph
    # Norms after a convolution are folded. Densenet has some before one; and since the weights of these models are
    # equal, three convolutions of each inception block become one with three norms.
    left = Counter(node.op for node in graph.nodes)["batch_norm"]
    assert left == {"light_densenet121": 62, "light_inception_v2": 6}.get(path.stem, 0)


MODELS = [models.text_direction_classifier, models.mobilenet_v2, models.resnet50]


@pytest.mark.parametrize("fetch", MODELS, ids=lambda fetch: fetch.__name__)
def test_models_compute_the_results_of_onnx_runtime(fetch: Callable[[], Path], tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = fetch()
    graph = load(path)
    canonical = Canonicalise(Registry.builtin().instances).run(graph)
    save_graph(canonical, tmp_path / "g.json")
    again = load_graph(tmp_path / "g.json")
    assert again == canonical
    (name,) = graph.inputs
    feeds = {name: np.random.default_rng(0).standard_normal(graph.types[name].shape).astype(np.float32)}
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    (found,) = evaluate_graph(again, Registry.builtin(), feeds).values()
    assert np.max(np.abs(found - expected)) <= 1e-4 * np.max(np.abs(expected))
    ops = Counter(node.op for node in canonical.nodes)
    assert not ops.keys() & {"batch_norm", "identity", "dropout"}


#: Models of nightly runs: compiling these takes seconds, and other tests cover their structure.
NIGHTLY_MODELS = ("classifier", "densenet121", "inception_v3", "mobilenet_v2", "resnet50")
COMPILED_MODELS = [name for name in models.REAL if name not in NIGHTLY_MODELS or NIGHTLY]
#: Those that the test above holds to ONNX Runtime, through a file and back besides; and the one that takes longest to
#: export, whose operations and concatenations others have, and whose graph a light model has.
ELSEWHERE = {"classifier", "mobilenet_v2", "resnet50", "densenet121"}


def difference_from_runtime(name: str, backend: Any) -> float:
    """Return the difference of a model's outputs from ONNX Runtime's."""
    model = models.REAL[name]
    feeds = model.draw()
    found = backend.prepare(onnx.load(model.fetch())).run(feeds)
    return models.difference(found, models.by_onnx_runtime(model.fetch(), feeds))


@pytest.mark.parametrize("name", [name for name in models.REAL if name not in ELSEWHERE or NIGHTLY])
def test_the_reference_agrees_with_onnx_runtime(name: str) -> None:
    from cuts.frontends.onnx.backend_representation import ReferenceBackend

    assert difference_from_runtime(name, ReferenceBackend) <= 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", COMPILED_MODELS)
def test_kernels_agree_with_onnx_runtime(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuts.compile.onnx_backend import CutsBackend

    monkeypatch.setenv("CUTS_ONNX_TARGET", device)
    assert difference_from_runtime(name, CutsBackend) <= 1e-3
