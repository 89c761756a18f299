"""Random networks of the benchmark compute numbers that half types hold."""

from __future__ import annotations

import pytest
from cuts.bench.networks.models import fit_norms


def test_norms_of_random_networks_fit_their_images() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Conv2d(8, 8, 3, bias=False), torch.nn.BatchNorm2d(8))]
    for layer in layers[::2]:
        torch.nn.init.normal_(layer.weight, std=1e-3)
    images = torch.randn(2, 8, 16, 16)
    model = torch.nn.Sequential(*layers).eval()
    with torch.no_grad():
        assert model(images).abs().max() < 2.0**-24, "all of it is zero in f16"
        found = fit_norms(model, images, torch)(images)
    assert not model.training
    assert 0.9 < float(found.std()) < 1.1
