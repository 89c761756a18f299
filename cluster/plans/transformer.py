"""Description of a transformer, read from TOML: sizes and choices.

Lengths are tokens, batches sequences, sizes elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from ...ir import DType, UsageError

#: Values that an optimiser keeps of a parameter besides the parameter.
MOMENTS = {"adam": 2, "momentum": 1, "sgd": 0}
#: Allowed texts of a field; an empty one is the usual choice of gated or ungated models.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "precision": ("mixed", "single"),
    "optimiser": tuple(MOMENTS),
    "norm": ("", "layer", "rms"),
    "positions": ("", "learned", "rotary", "none"),
    "activation": ("", "gelu", "gelu_tanh", "relu", "silu"),
}
#: The largest size of a model: larger numbers are typing errors.
MAX_MODEL_SIZE = 10**8
_POSITIVE = ("layers", "hidden", "heads", "sequence", "batch")
_NATURAL = ("inner", "kv_heads", "vocabulary", "head_width")


@frozen
class Transformer:
    """Stack of transformer blocks between an embedding and a head.

    With `vocabulary` 0 it is the blocks alone. `precision` is "mixed" (the thesis' rules: parameters, gradients and
    activations of 2 bytes, the optimiser's values of 4 with a copy of the parameters among them) or "single" (4 bytes
    for all); `batch` is a mini-batch in sequences. `gated` blocks have three matrices after the attention; unless the
    fields below say otherwise they have RMS norms, rotary positions, SiLU and a head of their own as LLaMA's, other
    blocks layer norms, learned positions, GELU and the embedding as head as GPT's. `head_width` is the elements of a
    head where it is not `hidden / heads`, `attention_biases` whether queries, keys and values have a bias, `biases`
    whether other matrices have one. `post_norm` blocks norm the sums of the residual stream (BERT), others the inputs
    of both halves. `theta` is the base of rotary angles, `epsilon` the constant of norms.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    inner: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    gated: bool = False
    biases: bool = True
    precision: str = "mixed"
    optimiser: str = "adam"
    head_width: int = 0
    norm: str = ""
    positions: str = ""
    activation: str = ""
    tied: bool | None = None
    attention_biases: bool | None = None
    causal: bool = True
    post_norm: bool = False
    theta: float = 10000.0
    epsilon: float = 1e-5

    def __attrs_post_init__(self) -> None:
        for name in (*_POSITIVE, *_NATURAL):
            value, least = getattr(self, name), int(name in _POSITIVE)
            self._expect(value >= least, name, "a number above 0" if least else "0 or more")
            self._expect(value <= MAX_MODEL_SIZE, name, f"at most {MAX_MODEL_SIZE}")
        self._expect(
            self.head_width > 0 or self.hidden % self.heads == 0, "heads", f"a number that divides {self.hidden}"
        )
        self._expect(self.heads % self.groups == 0, "kv_heads", f"a number that divides {self.heads}")
        for name, allowed in CHOICES.items():
            self._expect(getattr(self, name) in allowed, name, " or ".join(text for text in allowed if text))
        for name in ("theta", "epsilon"):
            self._expect(0 < getattr(self, name) < 1e30, name, "a number above 0")

    def _expect(self, holds: bool, name: str, expected: str) -> None:
        if not holds:
            raise UsageError(f"{self.name}: {name}: expected {expected}, found {getattr(self, name)}")

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Neurons between the last two matrices of a block."""
        return self.inner or 4 * self.hidden

    @property
    def head_elements(self) -> int:
        """Elements of a head's queries."""
        return self.head_width or self.hidden // self.heads

    @property
    def queries(self) -> int:
        """Elements of a token's queries."""
        return self.head_elements * self.heads

    @property
    def keys(self) -> int:
        """Elements of a token's keys, and of its values."""
        return self.head_elements * self.groups

    @property
    def has_rms_norms(self) -> bool:
        """Return whether norms divide by the root mean square."""
        return self.norm == "rms" or (not self.norm and self.gated)

    @property
    def position_kind(self) -> str:
        """The form of positions: "learned", "rotary" or "none"."""
        return self.positions or ("rotary" if self.gated else "learned")

    @property
    def nonlinearity(self) -> str:
        """The function between the last two matrices of a block."""
        return self.activation or ("silu" if self.gated else "gelu")

    @property
    def has_tied_head(self) -> bool:
        """Return whether the head's matrix is the embedding's."""
        return not self.gated if self.tied is None else self.tied

    @property
    def has_attention_biases(self) -> bool:
        """Return whether queries, keys and values have a bias."""
        return self.biases if self.attention_biases is None else self.attention_biases

    @property
    def dtype(self) -> DType:
        """The type of parameters, gradients and activations.

        Of the types of 2 bytes it is the one with the range of fp32, so that no gradient has to be scaled.
        """
        return DType.BF16 if self.precision == "mixed" else DType.F32

    @property
    def value_bytes(self) -> int:
        """Bytes of a parameter, a gradient or an activation in layers."""
        return self.dtype.size

    @property
    def state_bytes(self) -> int:
        """Bytes that the optimiser keeps of a parameter.

        They are its moments, and in mixed precision the parameter in 4 bytes.
        """
        return 4 * (MOMENTS[self.optimiser] + (self.precision == "mixed"))

    @property
    def matrices(self) -> int:
        """Elements of the matrices of a block."""
        mlp = (3 if self.gated else 2) * self.hidden * self.width
        return 2 * self.hidden * (self.queries + self.keys) + mlp

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden * (1 if self.has_rms_norms else 2)

    @property
    def block_parameters(self) -> int:
        """Parameters of a block: matrices, biases where there are any, two norms."""
        biases = 2 * self.hidden + self.width * (2 if self.gated else 1) if self.biases else 0
        biases += self.queries + 2 * self.keys if self.has_attention_biases else 0
        return self.matrices + biases + 2 * self.norm_parameters

    @property
    def replicated_parameters(self) -> int:
        """Parameters of a block that each of its GPUs holds.

        They are norms, and biases that are added once.
        """
        return 2 * (self.norm_parameters + self.biases * self.hidden)

    @property
    def words(self) -> int:
        """Elements of the embedding's table, and of the head's matrix."""
        return self.vocabulary * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding.

        They are a row a token, one a learned position, and a norm in `post_norm` models.
        """
        places = self.sequence * self.hidden if self.position_kind == "learned" else 0
        return self.words + places + self.post_norm * self.norm_parameters if self.vocabulary else 0

    @property
    def head_parameters(self) -> int:
        """Parameters of the head: its matrix, and the last norm."""
        return self.words + (not self.post_norm) * self.norm_parameters if self.vocabulary else 0

    @property
    def parameters(self) -> int:
        """All parameters; a tied head's matrix is the embedding's."""
        ends = self.embedding_parameters + self.head_parameters - self.has_tied_head * self.words
        return self.layers * self.block_parameters + ends

    @property
    def block_flops(self) -> float:
        """Floating-point operations of a block's forward pass for one sequence.

        Each multiply-add counts as two.
        """
        return 2.0 * self.sequence * self.matrices + 4.0 * self.sequence**2 * self.queries
