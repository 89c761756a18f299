"""Attention modules in evaluation run whole, as in PyTorch, with all masks."""

from __future__ import annotations

import warnings

import pytest

from ..needs import needs_opencl

torch = pytest.importorskip("torch")
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch import UncompiledWarning

PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
CAUSAL = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)


@pytest.fixture(autouse=True)
def _evaluation():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        yield


def check(function, *operands):
    """Compare results with those of PyTorch."""
    found, expected = torch.compile(function, backend=cuts_backend)(*operands), function(*operands)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@needs_opencl
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masks", [(None, None), (None, PADDING), (CAUSAL, None), (CAUSAL, PADDING)])
def test_encoder_layers(norm_first, activation, masks):
    layer = torch.nn.TransformerEncoderLayer(
        16, 2, 32, batch_first=True, norm_first=norm_first, activation=activation, layer_norm_eps=1e-3
    ).eval()
    check(lambda x: (layer(x, src_mask=masks[0], src_key_padding_mask=masks[1]),), torch.randn(3, 5, 16))


@needs_opencl
@pytest.mark.parametrize("needs_weights", [False, True])
@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("masks", [(None, None), (None, PADDING), (CAUSAL, None), (CAUSAL, PADDING)])
def test_multi_head_attention(needs_weights, averages, masks):
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    options = {"need_weights": needs_weights, "average_attn_weights": averages}
    check(lambda x: layer(x, x, x, attn_mask=masks[0], key_padding_mask=masks[1], **options), torch.randn(3, 5, 16))
