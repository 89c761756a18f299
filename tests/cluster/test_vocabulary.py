"""Models with an embedding and a head, and their descriptions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.cli.main import main
from cuts.cluster.kernels import Kernels, compile_kernels
from cuts.cluster.plans import Machine, Transformer, known_models, load_tokens, load_transformer
from cuts.cluster.plans.plan_file import ClusterPlan
from cuts.cluster.plans.ways import Way, columns
from cuts.cluster.prediction.feasibility import fit
from cuts.cluster.running import Runner
from cuts.cluster.storage.checkpoints import TensorCheckpoint, write_checkpoint
from cuts.cluster.storage.store import open_store
from cuts.ir.errors import PlanError, UsageError
from cuts.tests.needs import needs_opencl
from safetensors.numpy import load_file

HERE = Machine("here", 1, 1, 1e10, 1.0, 1e9, 1e9, 1e9, 1e9, 1e9)
#: Nothing stays in memory, and everything goes through storage.
STREAMED_WAY = Way(1, 1, 1, "PR", 1, "nothing", "recompute+offload")


def scaled_down(name: str) -> Transformer:
    """Return a packaged model in a size that trains in seconds."""
    model = load_transformer(name)
    heads = 4 * max(1, model.heads // model.groups) if model.groups != model.heads else 4
    groups = heads * model.groups // model.heads
    sizes = {"layers": 2, "hidden": 16 * heads, "heads": heads, "kv_heads": groups, "vocabulary": 53}
    inner = 24 * heads if model.inner else 0
    return evolve(model, name=name, sequence=16, batch=4, inner=inner, **sizes)


@cache
def kernels(model: Transformer, way: Way, training: bool) -> Kernels:
    """Compile once for models that differ by name."""
    return compile_kernels(ClusterPlan(model, HERE, way, training), "opencl")


def runner(folder: Path, model: Transformer, way: Way = STREAMED_WAY, *, training: bool = True, **more: Any) -> Runner:
    compiled = kernels(evolve(model, name="any"), way, training)
    return Runner(ClusterPlan(model, HERE, way, training), folder, kernels=compiled, seed=3, **more)


@needs_opencl
@pytest.mark.long
@pytest.mark.as_users_build
@pytest.mark.parametrize("name", known_models())
def test_packaged_models_train_in_small(name: str, tmp_path: Path) -> None:
    model = scaled_down(name)
    needs = float(fit(columns([STREAMED_WAY]), model, HERE).memory[0])
    made = runner(tmp_path, model, memory=needs)
    losses = made.train(2).losses
    made.close()
    assert losses == pytest.approx([np.log(53)] * 2, rel=0.3)
    assert losses[1] != losses[0]
    assert made.report.memory <= needs


GPT = Transformer("gpt", 2, 64, 4, 16, 4, vocabulary=53, precision="single")
LLAMA = evolve(GPT, name="llama", gated=True, biases=False, kv_heads=2, inner=96)


@needs_opencl
@pytest.mark.long
@pytest.mark.as_users_build
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda m: m.name)
def test_a_checkpoint_is_written_and_read(model: Transformer, tmp_path: Path) -> None:
    store = open_store(tmp_path / "first", model, [0, 1, 2, 3], training=False, seed=5)
    file = tmp_path / "model.safetensors"
    write_checkpoint(file, model, ((layer, store.parameters(layer, 0)) for layer in range(4)))
    tensors = load_file(file)
    assert tensors["wte.weight" if model is GPT else "model.embed_tokens.weight"].shape == (53, 64)
    assert ("lm_head.weight" in tensors) == (model is LLAMA)
    read = TensorCheckpoint(file)
    outputs = []
    for folder, weights in (("first", None), ("second", lambda layer: read.layer(model, layer))):
        made = runner(tmp_path / folder, model, Way(1, 1, 1, "PR", 1), training=False, weights=weights)
        outputs.append(made.infer(0))
        made.close()
    assert outputs[0].keys() == {0, 1, 2, 3}
    assert outputs[0][0].shape == (1, 53)
    assert all((outputs[0][key] == outputs[1][key]).all() for key in outputs[0])
    other = evolve(model, hidden=32)
    with pytest.raises(PlanError, match=r"expected \(53, 32\) of .*, found \(53, 64\)"):
        read.layer(other, 0)


def test_a_checkpoint_of_other_names_is_refused(tmp_path: Path) -> None:
    entry = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "other.safetensors").write_bytes(len(entry).to_bytes(8, "little") + entry + bytes(4))
    with pytest.raises(PlanError, match="expected a tensor named"):
        TensorCheckpoint(tmp_path / "other.safetensors")
    with pytest.raises(PlanError, match="expected a safetensors file"):
        TensorCheckpoint(tmp_path / "absent.safetensors")


def test_tokens_are_read_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.arange(50, dtype=np.uint16))
    batch = load_tokens(tmp_path / "text.npy", GPT, micro=2)
    x, target = batch(0, 0, 0)
    assert (x == [range(16), range(16, 32)]).all()
    assert (target == np.asarray(x) + 1).all()
    assert (batch(0, 0, 1)[0] == [range(32, 48), range(16)]).all()  # three whole sequences, then the first again
    np.save(tmp_path / "large.npy", np.arange(90))
    np.save(tmp_path / "short.npy", np.arange(9))
    with pytest.raises(UsageError, match="expected tokens from 0 to 52"):
        load_tokens(tmp_path / "large.npy", GPT, micro=2)
    with pytest.raises(UsageError, match="expected a row of more than 16 tokens"):
        load_tokens(tmp_path / "short.npy", GPT, micro=2)


#: Configurations as published, with the parameters of the models that they describe.
CONFIGURATIONS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama 2 7B": (
        {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
         "intermediate_size": 11008, "rms_norm_eps": 1e-5, "vocab_size": 32000, "hidden_act": "silu",
         "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "float16"},
        6_738_415_616,
    ),
    "Mistral 7B": (
        {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "rms_norm_eps": 1e-5, "vocab_size": 32000, "hidden_act": "silu",
         "max_position_embeddings": 32768, "sliding_window": 4096, "tie_word_embeddings": False},
        7_241_732_096,
    ),
    "Qwen2 7B": (
        {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
         "num_key_value_heads": 4, "intermediate_size": 18944, "rms_norm_eps": 1e-6, "vocab_size": 152064,
         "hidden_act": "silu", "max_position_embeddings": 131072, "rope_theta": 1e6, "use_sliding_window": False,
         "sliding_window": 131072, "tie_word_embeddings": False},
        7_615_616_512,
    ),
    "GPT-2": (
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
         "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        124_439_808,
    ),
    "BERT base": (
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
         "hidden_act": "gelu", "layer_norm_eps": 1e-12, "vocab_size": 30522, "max_position_embeddings": 512,
         "type_vocab_size": 2},
        108_890_112,  # without the pooler and the rows of token types
    ),
}  # fmt: skip


@pytest.fixture
def describe_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the description of a configuration, by the command line."""
    monkeypatch.chdir(tmp_path)

    def describe(config: dict[str, Any], *more: str) -> Transformer:
        Path("config.json").write_text(json.dumps(config))
        assert main(["plan", "hf", "config.json", "-o", "model.toml", *more]) == 0
        return load_transformer("model.toml")

    return describe


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_describes_its_model(name: str, describe_config: Any) -> None:
    config, parameters = CONFIGURATIONS[name]
    assert describe_config(config).parameters == parameters


def test_fields_of_a_configuration_decide(describe_config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = CONFIGURATIONS["Mistral 7B"]
    model = describe_config({**config, "head_dim": 160, "model_type": "unknown"}, "--sequence", "8192", "--batch", "64")
    assert (model.head_elements, model.queries, model.sequence, model.batch) == (160, 5120, 8192, 64)
    assert "a window of 4096 tokens counts as one over 8192" in capsys.readouterr().err
    bert = describe_config(CONFIGURATIONS["BERT base"][0])
    assert (bert.post_norm, bert.causal, bert.position_kind, bert.epsilon) == (True, False, "learned", 1e-12)
    assert describe_config(CONFIGURATIONS["GPT-2"][0]).nonlinearity == "gelu_tanh"
    assert describe_config(CONFIGURATIONS["Qwen2 7B"][0]).has_attention_biases
    assert main(["plan", "hf", "config.json", "cluster-c", "--limit", "1", "--batch", "64"]) == 0
    assert "qwen2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_local_experts": 8}, "expected a stack of equal blocks, found mixtures of experts"),
        ({"hidden_size": None}, "expected one of the fields hidden_size, n_embd"),
        ({"hidden_size": "wide"}, "hidden_size: expected a whole number"),
        ({"hidden_act": "mish"}, "activation: expected one of"),
        ({"num_key_value_heads": 5}, "kv_heads: expected a number that divides 32"),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    change: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGURATIONS["Mistral 7B"][0], **change}))
    assert main(["plan", "hf", str(path)]) == 2
    assert words in capsys.readouterr().err
