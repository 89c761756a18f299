"""Bidirectional LSTM, a diffusion model's U-Net, and models with their loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SequenceTagger(nn.Module):
    """Bidirectional LSTM with a label of each word (Huang and others, 2015).

    It maps words [N, S] to scores [N, S, labels].
    """

    def __init__(self, vocabulary: int = 30_000, width: int = 512, layers: int = 2, labels: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, labels)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of each word's labels."""
        states, _ = self.lstm(self.words(words))
        scores: Tensor = self.head(states)
        return scores


class ResidualBlock(nn.Module):
    """Two convolutions with group norms and a vector of the time."""

    def __init__(self, channels: int, outputs: int, width: int, groups: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, outputs)
        self.first = nn.Conv2d(channels, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(width, outputs)
        self.skip = nn.Conv2d(channels, outputs, 1) if channels != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the block's images."""
        h = self.first(F.silu(self.first_norm(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        found: Tensor = self.skip(x) + self.second(F.silu(self.second_norm(h)))
        return found


class PixelAttention(nn.Module):
    """Self-attention of all pixels, with one head."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(groups, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.output = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the images with attention added."""
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2)[:, None].chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
        found: Tensor = x + self.output(mixed)
        return found


class DiffusionUNet(nn.Module):
    """Predicts the noise of images at a time (Ho and others, 2020).

    It maps images [N, 3, H, W] and times [N] to noise of the images' shape. Levels have `multiples` of the channels,
    each with `blocks` residual blocks; the level `attentive` has attention. Sizes are those for CIFAR-10 by default.
    """

    def __init__(
        self,
        channels: int = 128,
        multiples: tuple[int, ...] = (1, 2, 2, 2),
        blocks: int = 2,
        attentive: int = 1,
        groups: int = 32,
    ) -> None:
        super().__init__()
        self.channels, width = channels, 4 * channels
        self.embed = nn.Sequential(nn.Linear(channels, width), nn.SiLU(), nn.Linear(width, width))
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        now, kept = channels, [channels]
        for level, multiple in enumerate(multiples):
            for _ in range(blocks):
                self.down.append(self._level(now, channels * multiple, width, groups, level == attentive))
                now = channels * multiple
                kept.append(now)
            if level + 1 < len(multiples):
                self.down.append(nn.Conv2d(now, now, 3, 2, 1))
                kept.append(now)
        self.middle = self._level(now, now, width, groups, True)
        self.last_middle = ResidualBlock(now, now, width, groups)
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(blocks + 1):
                self.up.append(self._level(now + kept.pop(), channels * multiple, width, groups, level == attentive))
                now = channels * multiple
            if level:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.head = nn.GroupNorm(groups, now), nn.Conv2d(now, 3, 3, padding=1)

    @staticmethod
    def _level(channels: int, outputs: int, width: int, groups: int, attentive: bool) -> nn.ModuleList:
        block = ResidualBlock(channels, outputs, width, groups)
        return nn.ModuleList([block, *([PixelAttention(outputs, groups)] * attentive)])

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        """Return the predicted noise."""
        half = self.channels // 2
        rates = torch.exp(torch.arange(half, device=images.device) * (-math.log(10_000) / half))
        angles = times[:, None] * rates
        time = self.embed(torch.cat((angles.sin(), angles.cos()), 1))
        h = self.stem(images)
        kept = [h]
        for part in self.down:
            h = self._run_part(part, h, time)
            kept.append(h)
        h = self.last_middle(self._run_part(self.middle, h, time), time)
        for part in self.up:
            if isinstance(part, nn.ModuleList):
                h = self._run_part(part, torch.cat((h, kept.pop()), 1), time)
            else:
                h = part(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        found: Tensor = self.head(F.silu(self.norm(h)))
        return found

    @staticmethod
    def _run_part(part: nn.Module, h: Tensor, time: Tensor) -> Tensor:
        if not isinstance(part, nn.ModuleList):
            down: Tensor = part(h)
            return down
        h = part[0](h, time)
        for more in list(part)[1:]:
            h = more(h)
        return h


class SelfLabelled(nn.Module):
    """Language model of transformers that returns its loss or its scores."""

    def __init__(self, network: nn.Module, scored: bool = False) -> None:
        super().__init__()
        self.network, self.scored = network, scored

    def forward(self, words: Tensor) -> Tensor:
        """Return the loss, or the next words' scores [N, S, vocabulary]."""
        found: Tensor = self.network(words).logits if self.scored else self.network(words, labels=words).loss
        return found
