"""Models whose training steps are timed: networks, batches, and losses.

Weights and inputs are random, equal at each call. A `small` network has the same layers of smaller sizes: it is for
tests without a GPU. Models of transformers compute their loss themselves, as they do where labels are given; losses of
the others are computed outside the compiled module.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any

from attrs import field, frozen
from cuts.bench.networks.language_models import CONFIGS
from cuts.bench.networks.models import BY_NAME, torchvision_models
from cuts.bench.networks.training import loss_of, without_dropout


@frozen
class TrainingCase:
    """Module with its inputs, and the loss of its result."""

    module: Any
    inputs: tuple[Any, ...]
    loss: Callable[[Any], Any]


@frozen
class TrainedModel:
    """Model with the batch of its step.

    `make(batch, small)` returns the module and its inputs, on the CPU; `loss(torch, example)` returns the function of a
    result that is minimised.
    """

    name: str
    batch: int
    make: Callable[[int, bool], tuple[Any, tuple[Any, ...]]] = field(repr=False)
    loss: Callable[[Any, Any], Callable[[Any], Any]] = field(default=loss_of, repr=False)

    def case(self, device: str, batch: int | None = None, is_small: bool = False) -> TrainingCase:
        """Return the model on a device in training mode, without random numbers."""
        torch = import_module("torch")
        torch.manual_seed(0)
        module, inputs = self.make(batch or self.batch, is_small)
        module, inputs = _without_noise(torch, module).to(device).train(), tuple(each.to(device) for each in inputs)
        with torch.no_grad():
            return TrainingCase(module, inputs, self.loss(torch, deepcopy(module)(*inputs)))


def _without_noise(torch: Any, module: Any) -> Any:
    """Disable dropout of elements, attention and whole layers."""
    for part in without_dropout(torch, module).modules():
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0
    return module


def own_loss(_: Any, __: Any) -> Callable[[Any], Any]:
    """Return the loss of a module that computes it itself."""
    return lambda found: found


def noise_loss(torch: Any, scores: Any) -> Callable[[Any], Any]:
    """Return the squared error from random noise."""
    noise = torch.randn_like(scores)
    return lambda found: torch.nn.functional.mse_loss(found, noise)


def vision(path: str, sizes: Callable[[Any], Mapping[str, Any]], batch: int, is_small: bool) -> Any:
    """Return a torchvision network, a small one of `sizes`, and images."""
    torch, models = import_module("torch"), torchvision_models()
    family, name = path.split(":")
    with warnings.catch_warnings():  # it warns of its own initialisation
        warnings.simplefilter("ignore")
        module = getattr(models, family)(num_classes=10, **sizes(models)) if is_small else getattr(models, name)()
    return module, (torch.randn(batch, 3, *2 * (32 if is_small else 224,)),)


def language(kind: str, tokens: int, fields: Mapping[str, Any], batch: int, is_small: bool) -> Any:
    """Return a network of transformers with its loss, and words."""
    torch, modules = import_module("torch"), import_module(f"{__package__}.modules")
    torchvision_models()  # which transformers imports
    transformers = import_module("transformers")
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    known = {**fields, "head_dim": 32, "num_key_value_heads": 1} if "head_dim" in fields else dict(fields)
    config = transformers.AutoConfig.for_model(kind, **(known | small | {"vocab_size": 128} if is_small else fields))
    config.use_cache = False
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_probs_dropout_prob", "hidden_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    family = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    network = family.from_config(config)
    if kind == "llama":
        network.gradient_checkpointing_enable({"use_reentrant": False})
    return modules.SelfLabelled(network), (torch.randint(config.vocab_size, (batch, 32 if is_small else tokens)),)


def tagger(batch: int, is_small: bool) -> Any:
    """Return the bidirectional LSTM, and sentences."""
    torch, modules = import_module("torch"), import_module(f"{__package__}.modules")
    words, vocabulary = (5, 50) if is_small else (128, 30_000)
    return modules.SequenceTagger(50, 8) if is_small else modules.SequenceTagger(), (
        torch.randint(vocabulary, (batch, words)),
    )


def diffusion(batch: int, is_small: bool) -> Any:
    """Return the U-Net, noisy images and their times."""
    torch, modules = import_module("torch"), import_module(f"{__package__}.modules")
    network = modules.DiffusionUNet(8, (1, 2), 1, groups=4) if is_small else modules.DiffusionUNet()
    return network, (torch.randn(batch, 3, *2 * (8 if is_small else 32,)), torch.randint(1000, (batch,)).float())


def _small_efficientnet(models: Any) -> Mapping[str, Any]:
    block = models.efficientnet.MBConvConfig
    settings = [block(1, 3, 1, 16, 8, 1, 1.0, 1.0), block(6, 5, 2, 8, 16, 2, 1.0, 1.0)]
    return {"inverted_residual_setting": settings, "dropout": 0.0, "last_channel": 32}


def _small_convnext(models: Any) -> Mapping[str, Any]:
    block = models.convnext.CNBlockConfig
    return {"block_setting": [block(16, 32, 1), block(32, None, 1)]}


_VIT = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
_SWIN = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [1, 2], "window_size": [4, 4]}
#: Llama-3.2-1B in four of its sixteen layers.
_DECODER = {**CONFIGS["llama-1b"][1], "num_hidden_layers": 4, "tie_word_embeddings": False}
MODELS = (
    TrainedModel("resnet-50", 64, partial(vision, "ResNet:resnet50", lambda m: {
        "block": m.resnet.Bottleneck, "layers": [1, 1, 1, 1], "width_per_group": 8})),
    TrainedModel("convnext-t", 32, partial(vision, "ConvNeXt:convnext_tiny", _small_convnext)),
    TrainedModel("efficientnet-b0", 64, partial(vision, "EfficientNet:efficientnet_b0", _small_efficientnet)),
    TrainedModel("vit-b16", 32, partial(vision, "VisionTransformer:vit_b_16", lambda _: _VIT)),
    TrainedModel("swin-t", 32, partial(vision, "SwinTransformer:swin_t", lambda _: _SWIN)),
    TrainedModel("bert-base", 32, partial(language, "bert", 128, {}), own_loss),
    TrainedModel("gpt2", 8, partial(language, "gpt2", 1024, {}), own_loss),
    TrainedModel("decoder-1b", 2, partial(language, "llama", 1024, _DECODER), own_loss),
    TrainedModel("dlrm", 2048, BY_NAME["dlrm"].make),
    TrainedModel("bilstm", 64, tagger),
    TrainedModel("attention-rnn", 64, BY_NAME["attention-rnn"].make),
    TrainedModel("unet", 64, diffusion, noise_loss),
)  # fmt: skip
#: Models by name.
MODELS_BY_NAME = {model.name: model for model in MODELS}
