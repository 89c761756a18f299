"""Applications of Table 10 of DeepCuts: models, inputs, and batch sizes.

Weights and inputs are random, equal at each call. Convolutional networks are torchvision's; `modules.py` has the
others. A `small` network has the same layers of smaller sizes: it is for tests without a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Literal, TypeAlias

from attrs import field, frozen
from cuts.ir.machine import PrecisionName

#: Frames of a spectrogram: three seconds, about the length of a recording of AN4.
FRAMES = 300
#: Words of a sentence, about the length of one of WMT.
WORDS = 25
#: Tokens of BERT.
TOKENS = 128
#: Batches of the convolutional networks in inference, as the paper has them.
CNN_BATCHES = (1, 16, 64, 256)

Kind: TypeAlias = Literal["CNN", "RNN", "MLP"]
Task: TypeAlias = Literal["inference", "training"]
Made: TypeAlias = tuple[Any, tuple[Any, ...]]


@frozen
class Application:
    """Model whose `make(batch, small)` returns it on the CPU, with inputs.

    It is in evaluation mode.

    `batches` are those of inference, `training` that of a training step.
    """

    name: str
    kind: Kind
    make: Callable[[int, bool], Made] = field(repr=False)
    batches: tuple[int, ...]
    training: int

    @property
    def images(self) -> bool:
        """Return whether its input is images, in either channel order of PyTorch."""
        return self.kind == "CNN"


@frozen
class ModelWorkload:
    """Line of the evaluation: a model, its task, batch size and precision.

    It may have a search budget of its own, in seconds.
    """

    model: Application
    task: Task
    batch: int
    budget: float | None = field(default=None, eq=False)
    precision: PrecisionName = "fp32"

    @property
    def label(self) -> str:
        """Name in rows and figures."""
        words = [*(["training"] * (self.task == "training")), *([self.precision] * (self.precision != "fp32"))]
        return " ".join([f"{self.model.name} b{self.batch}", *words])

    @property
    def identity(self) -> dict[str, Any]:
        """Fields of a row that name the workload."""
        own = {"model": self.model.name, "task": self.task, "batch": self.batch, "precision": self.precision}
        return {"suite": "evaluation", "class": self.task, "name": self.model.name, **own}


def vision(name: str, batch: int, small: bool, size: int = 224, least: int = 64, **options: Any) -> Made:
    """Return a torchvision network with fitted norms, and images.

    The norms have the statistics of the images.
    """
    torch = import_module("torch")
    torch.manual_seed(0)
    with warnings.catch_warnings():  # it warns of its own initialisation
        warnings.simplefilter("ignore")
        model = getattr(torchvision_models(), name)(weights=None, **options)
    images = torch.randn(batch, 3, *2 * (least if small else size,))
    return fit_norms(model, images, torch), (images,)


def torchvision_models() -> Any:
    """Return torchvision's models.

    Its operators, which none of them needs, are missing where it was built for another PyTorch; it asks for their names
    nevertheless.
    """
    with warnings.catch_warnings():  # it uses features that PyTorch deprecates
        warnings.simplefilter("ignore")
        try:
            return import_module("torchvision.models")
        except RuntimeError:  # only now are they known to miss: where they do not, a second definition is an abort
            library = import_module("torch").library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _LIVING_LIBRARIES.append(library)
            return import_module("torchvision.models")


#: Libraries of operators live as long as their objects.
_LIVING_LIBRARIES: list[Any] = []


def speech(batch: int, small: bool) -> Made:
    """Return DeepSpeech2, and spectrograms."""
    torch, modules = _load_models()
    model = modules.DeepSpeech2(width=16, layers=2) if small else modules.DeepSpeech2()
    spectrograms = torch.randn(batch, 1, 161, 24 if small else FRAMES)
    return fit_norms(model, spectrograms, torch), (spectrograms,)


def translation(batch: int, small: bool) -> Made:
    """Return the attention RNN, and pairs of sentences."""
    torch, modules = _load_models()
    vocabulary, words = (100, 5) if small else (50_000, WORDS)
    model = modules.AttentionRNN(vocabulary, 16, 2) if small else modules.AttentionRNN()
    return model.eval(), tuple(torch.randint(vocabulary, (batch, words)) for _ in range(2))


def recommendation(batch: int, small: bool) -> Made:
    """Return DLRM, and samples of the Kaggle data's form."""
    torch, modules = _load_models()
    model = modules.DLRM((50, 3, 20, 7)) if small else modules.DLRM()
    categories = [torch.randint(table.num_embeddings, (batch,)) for table in model.tables]
    return model.eval(), (torch.rand(batch, 13), torch.stack(categories, 1))


def language(batch: int, small: bool) -> Made:
    """Return BERT-base, and pairs of a question and a text."""
    torch, modules = _load_models()
    vocabulary, tokens = (100, 16) if small else (30_522, TOKENS)
    model = modules.BERT(vocabulary, 128, 2, 32) if small else modules.BERT()
    segments = (torch.arange(tokens) >= tokens // 4).long().expand(batch, tokens).contiguous()
    return model.eval(), (torch.randint(vocabulary, (batch, tokens)), segments)


def _load_models() -> tuple[Any, Any]:
    """Return PyTorch with a seed, and the modules."""
    torch = import_module("torch")
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # which no export can follow
    return torch, import_module(f"{__package__}.modules")


#: Without the second head, which only training asks for.
INCEPTION = partial(vision, "inception_v3", size=299, least=96, init_weights=False, aux_logits=False)
#: Networks with heads that only training asks for.
AUXILIARY = ("googlenet", "inception_v3")
APPLICATIONS = (
    Application("ResNet-50", "CNN", partial(vision, "resnet50"), CNN_BATCHES, 64),
    Application("DenseNet-121", "CNN", partial(vision, "densenet121"), CNN_BATCHES, 64),
    Application("Inception-v3", "CNN", INCEPTION, CNN_BATCHES, 64),
    Application("MobileNetV2", "CNN", partial(vision, "mobilenet_v2"), CNN_BATCHES, 64),
    Application("DeepSpeech2", "RNN", speech, (1, 16), 16),
    Application("Attention-RNN", "RNN", translation, (1, 64), 64),
    Application("DLRM", "MLP", recommendation, (1, 2048), 2048),
    Application("BERT-base", "MLP", language, (1, 64), 32),
)
BY_NAME = {model.name.lower(): model for model in APPLICATIONS}


def other_vision(name: str) -> Application | None:
    """Return a torchvision network by `torchvision.NAME`, or nothing without one."""
    package, _, own = name.partition(".")
    if package != "torchvision" or own not in torchvision_models().list_models(torchvision_models()):
        return None
    options = {"init_weights": False, "aux_logits": False} if own in AUXILIARY else {}
    return Application(name, "CNN", partial(vision, own, **options), (16,), 64)


def workloads() -> tuple[ModelWorkload, ...]:
    """Return all 32 workloads: small batches of inference first, training last."""
    inference = [ModelWorkload(model, "inference", batch) for model in APPLICATIONS for batch in model.batches]
    inference.sort(key=lambda each: each.model.batches.index(each.batch))
    return (*inference, *(ModelWorkload(model, "training", model.training) for model in APPLICATIONS))


#: Images that batch norms learn statistics from, at most.
IMAGES = 8


def fit_norms(model: Any, images: Any, torch: Any) -> Any:
    """Return a network with batch norms fitted to some images.

    It is in evaluation mode. With initial statistics numbers fall below the range of half types, and errors would say
    nothing.
    """
    for part in model.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.momentum = 1.0  # the observed statistics replace the initial ones
    seen = images[:IMAGES] if len(images) > 1 else torch.randn(2, *images.shape[1:])  # one value has no variance
    with torch.no_grad():
        model.train()(seen)
    return model.eval()
