"""PyTorch modules of Table 10's other networks, with random weights.

They are those of DeepCuts that no library has.

They follow the papers that Table 10 names. Where a paper leaves a choice open, or trains several sizes, the class
states the choice.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class DeepSpeech2(nn.Module):
    """Speech to characters (Amodei and others, 2016).

    It maps spectrograms [N, 1, F, T] to scores [N, T', labels].

    Two convolutions over frequency and time, the first of stride two in time, five bidirectional GRUs whose directions
    are added up, each preceded by a batch norm over the sequence, and a linear layer after another norm.
    """

    def __init__(self, frequencies: int = 161, width: int = 800, layers: int = 5, labels: int = 29) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0.0, 20.0),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False), nn.BatchNorm2d(32), nn.Hardtanh(0.0, 20.0),
        )  # fmt: skip
        rows = ((frequencies + 1) // 2 + 1) // 2
        sizes = [32 * rows, *(width for _ in range(layers - 1))]
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes[1:])
        self.layers = nn.ModuleList(nn.GRU(size, width, bidirectional=True, bias=True) for size in sizes)
        self.last = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, labels, bias=False)

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Return the scores of all labels at each step."""
        heard = self.front(spectrograms)
        steps = heard.flatten(1, 2).permute(2, 0, 1)
        for number, layer in enumerate(self.layers):
            steps = steps if number == 0 else _normalise(self.norms[number - 1], steps)
            both, _ = layer(steps)
            steps = both.unflatten(2, (2, -1)).sum(2)
        scores: Tensor = self.head(_normalise(self.last, steps))
        return scores.transpose(0, 1)


def _normalise(norm: nn.Module, steps: Tensor) -> Tensor:
    """Return steps [T, N, C] normalised over steps and samples."""
    normed: Tensor = norm(steps.flatten(0, 1))
    return normed.reshape(steps.shape)


class AttentionRNN(nn.Module):
    """Translation with global attention (Luong, Pham and Manning, 2015).

    It maps words [N, S] and [N, T] to scores of the next target word, [N, T, vocabulary].

    Two stacks of four LSTMs of 1,000 cells; each decoder state is scored against all encoder states by a bilinear form
    (`general`), and the context it finds joins it under a tanh. The target is given (teacher forcing), as it is when
    the network is trained and when sentences are scored, so the paper's feeding of attention into the next input, which
    is an option there, is left out.
    """

    def __init__(self, vocabulary: int = 50_000, width: int = 1000, layers: int = 4) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True)
        self.general = nn.Linear(width, width, bias=False)
        self.joined = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores of the successors of each target word."""
        memory, (hidden, cell) = self.encoder(self.source(source))
        # cuDNN's results are not always contiguous, nor of three axes, as its operands must be.
        state = tuple(part.reshape(self.encoder.num_layers, len(source), -1).contiguous() for part in (hidden, cell))
        asked, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(asked @ self.general(memory).transpose(1, 2), -1)
        found = torch.tanh(self.joined(torch.cat((weights @ memory, asked), -1)))
        scores: Tensor = self.head(found)
        return scores


#: Categories of each feature of the Kaggle Display Advertising Challenge; a table has `ROWS` rows at most (the
#: reference's `--max-ind-range`), so that its memory says nothing of the time.
CATEGORIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
ROWS = 100_000
TABLES = tuple(min(count, ROWS) for count in CATEGORIES)


class DLRM(nn.Module):
    """Recommendation (Naumov and others, 2019), in the reference's Kaggle size.

    It maps 13 numbers [N, 13] and one category of each of 26 features [N, 26] to the probability of a click [N, 1].

    Numbers go through an MLP (512, 256, 64, 16), categories through tables of 16 columns; the dot products of all pairs
    join the numbers and go through an MLP (512, 256, 1).
    """

    def __init__(self, tables: tuple[int, ...] = TABLES, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        self.bottom = _dense((13, 512, 256, 64, width))
        count = len(tables) + 1
        self.top = _dense((count * (count - 1) // 2 + width, 512, 256, 1), last=nn.Sigmoid())
        rows, columns = torch.tril_indices(count, count, -1)
        self.register_buffer("pairs", rows * count + columns)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Return the chance of a click of each sample."""
        dense = self.bottom(numbers)
        looked_up = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        vectors = torch.stack((dense, *looked_up), 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        pairs: Tensor = self.get_buffer("pairs")
        clicked: Tensor = self.top(torch.cat((dense, products.index_select(1, pairs)), 1))
        return clicked


def _dense(widths: tuple[int, ...], last: nn.Module | None = None) -> nn.Sequential:
    """Return linear layers with a ReLU after each, except that `last` follows the last one."""
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    flat: list[nn.Module] = [part for pair in layers for part in pair]
    return nn.Sequential(*flat[:-1], last or flat[-1])


class BERT(nn.Module):
    """BERT-base (Devlin and others, 2019) with the head for SQuAD.

    It maps tokens and segments [N, S] to the scores of being the first and the last token of the answer, [N, S, 2].
    """

    def __init__(self, vocabulary: int = 30_522, width: int = 768, layers: int = 12, positions: int = 512) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """Return the scores of each token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.words(tokens) + self.segments(segments) + self.positions(places)
        scores: Tensor = self.head(self.encoder(self.norm(embedded)))
        return scores


class Decoder(nn.Module):
    """Llama of equal layers (Touvron and others, 2023), without a head.

    It has grouped queries, and maps tokens [N, S] to states [N, S, width].
    """

    def __init__(self, layers: int, width: int, heads: int, groups: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.words, self.norm, self.pairs = (
            nn.Embedding(vocabulary, width),
            nn.RMSNorm(width, 1e-5),
            width // heads // 2,
        )
        self.layers = nn.ModuleList(DecoderLayer(width, heads, groups, inner) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the state of each token."""
        state: Tensor = self.words(tokens)
        angles = torch.arange(tokens.shape[1])[:, None] * 10_000.0 ** (-torch.arange(self.pairs) / self.pairs)
        turns = torch.cat([angles, angles], -1)
        for layer in self.layers:
            state = layer(state, turns.cos(), turns.sin())
        found: Tensor = self.norm(state)
        return found


class DecoderLayer(nn.Module):
    """Layer of a `Decoder`: causal attention, and a gated network."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.head = width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-5) for _ in range(2))
        sizes = (width, width), (width, groups * self.head), (width, groups * self.head), (width, width)
        self.q, self.k, self.v, self.o = (nn.Linear(a, b, bias=False) for a, b in sizes)
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, inner), (width, inner), (inner, width))
        )

    def forward(self, state: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the next state."""
        seen = self.norms[0](state)
        q, k, v = (part(seen).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (x * cos + torch.cat([-x[..., self.head // 2 :], x[..., : self.head // 2]], -1) * sin for x in (q, k))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        state = state + self.o(mixed.transpose(1, 2).flatten(2))
        seen = self.norms[1](state)
        found: Tensor = state + self.down(nn.functional.silu(self.gate(seen)) * self.up(seen))
        return found


class ScoredRows(nn.Module):
    """A network whose scores are rows, as a loss takes them."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *given: Tensor) -> Tensor:
        """Return a row of scores for each sample, word or frame."""
        scores: Tensor = self.network(*given)
        return scores.reshape(-1, scores.shape[-1])
