"""Decoders of transformers: the example and the bench, in small."""

from __future__ import annotations

import runpy
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from cuts.tests.needs import needs_opencl

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cuts.bench.networks import llm
from cuts.bench.networks.language_models import CachedDecoder, make_config
from cuts.bench.tools.records import read_rows

try:
    transformers.LlamaForCausalLM  # noqa: B018
except (ImportError, RuntimeError):  # torchvision of another PyTorch
    pytest.skip("transformers has no decoders here", allow_module_level=True)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["program", *arguments])


@needs_opencl
def test_tokens_equal_those_of_eager_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _run(monkeypatch, "--prompts", "5", "7", "--tokens", "12", "--length", "32")
    example = runpy.run_path(str(Path(llm.__file__).parents[2] / "examples" / "decode.py"))
    torch.manual_seed(2)
    example["main"]()
    lines = capsys.readouterr().out.splitlines()
    found = [list(map(int, line.split())) for line in lines[1::2]]
    torch.manual_seed(2)
    decoder = CachedDecoder(make_config("tiny"), 1, 32, "cpu", torch.float32)
    with torch.no_grad():
        for length, tokens in zip((5, 7), found, strict=True):
            prompt = torch.randint(decoder.vocabulary, (1, length))
            assert list(example["stream"](decoder, decoder, decoder, prompt, 12)) == tokens


def test_the_bench_prints_a_line_for_each_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "--model", "tiny", "--device", "cpu", "--length", "64", "--prompts", "4", "--systems", "eager")
    assert llm.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["token" in lines[0], "prompt 4" in lines[1], len(lines)] == [True, True, 2]


def test_a_short_cache_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _run(monkeypatch, "--model", "tiny", "--device", "cpu", "--length", "16", "--prompts", "12")
    with pytest.raises(llm.UsageError, match="--length 16: expected a cache for 22 tokens at least"):
        llm.main()


def test_rows_of_a_gpu_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    options = Namespace(out=tmp_path / "llm.json", weights="int4", budget=None)
    for system in ("cuts", "inductor"):
        row = {"model": "tiny", "layers": 2, "batch": 4, "system": system, "task": "token", "ms": 2.0}
        llm.keep(row, options)
    ours, other = read_rows(options.out)
    assert (ours["name"], ours["cuts_ms"], ours["device"]) == ("tiny x2 token int4", 2.0, "some GPU")
    assert (other["name"], other["cuts_ms"], other["peers"]) == ("tiny x2 token", None, {"inductor": 2.0})
