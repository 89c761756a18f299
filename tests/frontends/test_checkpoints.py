"""Checkpoints of GGUF and compressed-tensors keep packed weights packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.compile.torch_backend import cuts_backend
from cuts.ir import CutsError, GraphError, UsageError
from cuts.tests.needs import needs_opencl

torch = pytest.importorskip("torch")

from cuts.frontends.torch import load_checkpoint, pack_layers
from cuts.frontends.torch.checkpoints import BLOCK_FORMATS, PackedMatrix, split_blocks

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "pad_token_id": None, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
#: Places of halves in a block.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,)}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages


def transformers() -> Any:
    """Return the package, where all of it can be imported."""
    package = pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        return package.LlamaForCausalLM and package
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"transformers cannot be imported: {error}")


def decoder(kind: str, tied: bool) -> Any:
    """Return a small decoder with random weights."""
    package = transformers()
    torch.manual_seed(0)
    config = package.AutoConfig.for_model(kind, **SIZES, tie_word_embeddings=tied)
    model = package.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.dim() < 2 and "gemma" not in kind), std=0.1)
    return model


def agree(found: Any, expected: Any) -> float:
    """Return the difference of two models' results, over their size."""
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        a, b = found(tokens).logits, expected(tokens).logits
    return float((a - b).norm() / b.norm())


# ---- GGUF


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_blocks_equal_the_package(kind: str) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    chance, type_ = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    blocks = chance.integers(0, 256, (3, 2, gguf.GGML_QUANT_SIZES[type_][1])).astype(np.uint8)
    for place in HALVES.get(kind, (0,)):
        halves = chance.standard_normal((3, 2, 1)).astype(np.float16)
        blocks[..., place : place + 2] = halves.view(np.uint8)
    rows = blocks.reshape(3, -1)
    parts = (None if part is None else torch.from_numpy(part) for part in split_blocks(rows, kind))
    numbers, scale, shift = parts
    matrix = PackedMatrix(numbers, scale, shift=shift)
    assert np.array_equal(matrix(torch.float32).numpy(), gguf.quants.dequantize(rows, type_))
    assert matrix.is_packed == (kind[1] in "234")


def write_gguf(path: Path, model: Any, arch: str, kind: str) -> Any:
    """Write a model to a file; return it with the file's weights."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    writer, config = gguf.GGUFWriter(path, arch), model.config
    for field, value in {
        "block_count": 1, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96, "head_count": 4,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 10000.0, "vocab_size": 64, "key_length": 16,
    }.items():  # fmt: skip
        getattr(writer, f"add_{field}")(value)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names, type_ = gguf.get_tensor_name_map(number, 1), gguf.GGMLQuantizationType[kind]
    for name, parameter in model.named_parameters():
        stem, _, last = name.rpartition(".")
        theirs, array = names.get_name(stem), parameter.detach().numpy() + float("gemma" in arch and "norm" in name)
        turns = arch == "llama" and theirs.endswith(("attn_q", "attn_k"))
        heads = config.num_attention_heads if theirs.endswith("q") else config.num_key_value_heads
        array = array.reshape(heads, 2, -1, 64).swapaxes(1, 2).reshape(array.shape) if turns else array
        if array.ndim == 1:
            writer.add_tensor(f"{theirs}.{last}", array.astype(np.float32))
            continue
        blocks = gguf.quants.quantize(array, type_)
        writer.add_tensor(f"{theirs}.{last}", blocks, raw_dtype=type_)
        array = gguf.quants.dequantize(blocks, type_)
        array = array.reshape(heads, -1, 2, 64).swapaxes(1, 2).reshape(array.shape) if turns else array
        parameter.data.copy_(torch.from_numpy(array.copy()))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    return model


@pytest.mark.parametrize(("arch", "model", "kind", "tied"), [
    ("llama", "llama", "Q4_0", True), ("qwen3", "qwen3", "Q4_1", False), ("gemma2", "gemma2", "Q8_0", True),
])  # fmt: skip
def test_decoders_of_gguf(tmp_path: Path, arch: str, model: str, kind: str, tied: bool) -> None:
    expected = write_gguf(tmp_path / "m.gguf", decoder(model, tied), arch, kind)
    found = load_checkpoint(tmp_path / "m.gguf")
    assert agree(found, expected) <= 1e-6
    tables = {id(m.matrix): m.matrix for m in found.modules() if hasattr(m, "matrix")}
    assert len(tables) == 7 + 2 - tied, "a tied head shares its matrix"
    floats = sum(p.numel() for p in expected.parameters() if p.dim() > 1)
    assert sum(m.stored_bytes for m in tables.values()) <= floats * (9 if kind == "Q8_0" else 6) / 8


def test_damaged_files_of_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    path = tmp_path / "m.gguf"
    write_gguf(path, decoder("llama", False), "llama", "Q8_0")
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[:30], b"no model"):
        path.write_bytes(damaged)
        with pytest.raises(GraphError, match=r"m.gguf .*truncated"):
            load_checkpoint(path)
    place = data.index(b"output.weight") + len("output.weight") + 4 + 16
    assert data[place : place + 4] == int(gguf.GGMLQuantizationType.Q8_0).to_bytes(4, "little")
    path.write_bytes(data[:place] + (99).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(GraphError, match=r"known types.*99"):
        load_checkpoint(path)
    path.write_bytes(data.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00lamma"))
    with pytest.raises(UsageError, match="architecture 'lamma' is not supported; files may have one of llama"):
        load_checkpoint(path)


# ---- compressed-tensors

SCHEMES = {
    "int4": {"num_bits": 4, "strategy": "group", "group_size": 32},
    "zeros": {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    "int8": {"num_bits": 8, "strategy": "channel"},
    "float8": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    "dynamic": {"num_bits": 8, "strategy": "channel"},
}


def quantised_layer(name: str, weight: Any) -> tuple[Any, dict[str, Any], Any]:
    """Return a scheme, its tensors, and the package's dequantised weight."""
    quantization = pytest.importorskip("compressed_tensors.quantization", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import BaseCompressor

    given = quantization.QuantizationArgs(**SCHEMES[name])
    inputs = quantization.QuantizationArgs(num_bits=8, strategy="token", dynamic=True) if name == "dynamic" else None
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=given, input_activations=inputs)
    blocks = weight.reshape(1, 1, -1) if name == "float8" else weight.reshape(len(weight), -1, given.group_size or 64)
    low, high = blocks.amin(-1), blocks.amax(-1)
    largest = 448.0 if name == "float8" else float((1 << (given.num_bits - 1)) - 1)
    state = {"weight": weight, "weight_scale": blocks.abs().amax(-1) / largest}
    if not given.symmetric:
        state["weight_scale"] = (high - low) / 15
        state["weight_zero_point"] = (-low / state["weight_scale"]).round().sub(8).clamp(-8, 7).to(torch.int8)
    kind = "pack-quantized" if given.num_bits == 4 else "naive-quantized"
    compressor = BaseCompressor.get_value_from_registry(kind)
    stored = compressor.compress(state, scheme)
    return scheme, stored, compressor.decompress(stored, scheme)["weight"]


@needs_opencl
@pytest.mark.parametrize("name", SCHEMES)
def test_layers_of_schemes(name: str) -> None:
    from cuts.frontends.torch.checkpoints.schemes import layer_of_scheme

    torch.manual_seed(0)
    scheme, stored, weight = quantised_layer(name, torch.randn(48, 64))
    layer = layer_of_scheme("q", scheme, stored)
    assert torch.equal(layer.weight, weight)
    assert layer.matrix.stored_bytes <= 48 * 64 * scheme.weights.num_bits / 8 + 48 * 8 + 48 * 2
    torch._dynamo.reset()
    x = torch.randn(3, 64)
    with torch.no_grad():
        expected = layer(x)
        found = torch.compile(layer, backend=cuts_backend, options={"freeze": True})(x)
    assert (found - expected).norm() <= (0.02 if name == "dynamic" else 1e-5) * expected.norm()


def test_schemes_without_packed_form() -> None:
    from cuts.frontends.torch.checkpoints.schemes import layer_of_scheme

    scheme, stored, _ = quantised_layer("int4", torch.randn(48, 64))
    with pytest.raises(UsageError, match="layer 'q': expected tensor 'weight_scale', found weight_packed"):
        layer_of_scheme("q", scheme, {n: t for n, t in stored.items() if n != "weight_scale"})
    with pytest.raises(UsageError, match=r"found 4 bits of int by group with weight_g_idx; dequantise it"):
        layer_of_scheme("q", scheme, {**stored, "weight_g_idx": torch.zeros(64)})
    scheme.weights.group_size = 24
    with pytest.raises(UsageError, match="expected 64 columns in groups of 24, found 2 scales; quantise it"):
        layer_of_scheme("q", scheme, stored)
    with pytest.raises(UsageError, match="groups divide its columns, found"):
        PackedMatrix(torch.zeros(4, 10, dtype=torch.int8), torch.ones(4, 3))
    with pytest.raises(UsageError, match="has no layers that compressed-tensors quantised"):
        pack_layers(torch.nn.Linear(2, 2))


def test_folders_of_compressed_tensors(tmp_path: Path) -> None:
    compressors = pytest.importorskip("compressed_tensors.compressors", reason="compressed-tensors is not installed")
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    model = decoder("llama", True)
    scheme, _, _ = quantised_layer("int4", torch.randn(48, 64))
    config = QuantizationConfig(config_groups={"g": scheme}, ignore=["lm_head"], quantization_status="frozen")
    apply_quantization_config(model, config)
    for layer in (m for m in model.modules() if getattr(m, "quantization_scheme", None)):
        layer.weight_scale.data = layer.weight.data.reshape(len(layer.weight), -1, 32).abs().amax(-1) / 7
    compressor = compressors.ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(tmp_path)
    load = transformers().AutoModelForCausalLM.from_pretrained
    found = load_checkpoint(tmp_path)
    assert agree(found, load(tmp_path).eval()) <= 1e-6
    assert agree(pack_layers(load(tmp_path).eval()), found) <= 1e-6
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(GraphError, match=r"model.safetensors cannot be read"):
        load_checkpoint(tmp_path)
    with pytest.raises(CutsError, match=r"is no checkpoint: expected a .gguf file, or a folder with config.json"):
        load_checkpoint(tmp_path / "elsewhere")
