"""Default closed form of the time of a mini-batch.

It is derived from the schedule of `stages.py`, and checked against its simulation. Stages of AR hold neighbouring
layers and work "one forward, one backward": with `n` micro-batches the mini-batch takes one micro-batch's pass through
all stages and `n - 1` periods of the slowest. Stages of PR hold every `p`-th block, so that micro-batches go round: a
pass takes the rounds of the slowest stage, and `p - 1` more until the last stage has begun. The optimiser works when
both passes are done.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from ..plans import Column, Machine, Terms, Transformer, Ways
from .stages import PipelineStage, StageTimes


def corrected_terms(ways: Ways, model: Transformer, machine: Machine, *, training: bool = True) -> Terms:
    """Score ways.

    Rows that do not divide are scored as if they did, `feasibility` marks them.
    """
    safe = evolve(ways, p=np.where(model.layers % ways.p == 0, ways.p, 1))
    first, middle, last = (
        PipelineStage(safe, model, machine, number, training=training)
        for number in (np.zeros_like(safe.p), np.minimum(1, safe.p - 1), safe.p - 1)
    )
    stages = [stage.passes() for stage in (first, middle, last)]
    n = np.maximum(first.n, 1)
    pr = _parameter_resident(safe, n, first.blocks, stages)
    ar = _activation_resident(safe, n, stages)
    passes = stages[0].fill + np.where(safe.pr, pr, ar)
    seconds = [s.read / machine.read + s.write / machine.write for s in stages]
    slowest = np.argmax(
        np.stack([np.maximum(s.compute + s.wp, t) for s, t in zip(stages, seconds, strict=True)]), axis=0
    )
    updates = [s.optimiser_read / machine.read + s.optimiser_write / machine.write for s in stages]
    optimiser = np.maximum.reduce(updates)
    busy = np.where(safe.pr, *(f(stages) for f in (_one_mini_batch, lambda s: n * _one_mini_batch(s))))

    def of(name: str) -> Column:
        found: Column = np.choose(slowest, [getattr(stage, name) for stage in stages])
        return found

    return Terms(
        compute=of("compute"),
        storage=np.choose(slowest, seconds),
        wp=of("wp"),
        dp=of("dp"),
        pipeline=of("pipeline"),
        optimiser=optimiser,
        bubble=np.maximum(passes - busy, 0.0),
        total=passes + optimiser,
        read=of("read"),
        write=of("write"),
        optimiser_read=of("optimiser_read"),
        optimiser_write=of("optimiser_write"),
        wp_bytes=of("wp_bytes"),
        dp_bytes=of("dp_bytes"),
        pipeline_bytes=of("pipeline_bytes"),
    )


def _one_mini_batch(stages: list[StageTimes]) -> Column:
    found: Column = np.maximum.reduce([stage.forward + stage.backward for stage in stages])
    return found


def _parameter_resident(ways: Ways, n: Column, blocks: Column, stages: list[StageTimes]) -> Column:
    """Return the seconds of both passes of PR.

    A period takes a micro-batch round all stages: where that is longer than all micro-batches take on one, stages wait
    in each period; and the last stage begins when the first micro-batch has come to it.
    """
    total = _one_mini_batch(stages) + stages[0].last
    for wait, step in (
        (stages[1].wait_forward, stages[1].round_forward),
        (stages[1].wait_backward, stages[1].round_backward),
    ):
        hop = np.where(wait > 0, wait + stages[1].send, 0.0)
        total = total + (ways.p - 1) * hop + (blocks - 1) * np.maximum(ways.p * hop - n * step, 0.0) * (ways.p > 1)
    return total


def _activation_resident(ways: Ways, n: Column, stages: list[StageTimes]) -> Column:
    """Return the seconds of both passes of AR: one micro-batch through the other stages, and all of them at the
    slowest.

    In training a stage has at most `p` in flight, so `p` of them take at least as long as one takes there and back.
    """
    first, middle, last = (stage.wait_forward + stage.wait_backward for stage in stages)
    passes = (stages[0].wait_backward > 0).astype(int) + 1
    several = ways.p > 1
    middle, last = (
        wait - several * (stage.first + stage.wrap) for wait, stage in ((middle, stages[1]), (last, stages[2]))
    )
    first = first - several * stages[0].wrap
    through = first + np.where(ways.p > 2, (ways.p - 2) * middle, 0.0) + np.where(ways.p > 1, last, 0.0)
    through = through + (ways.p - 1) * passes * stages[0].send
    found = np.zeros(len(n))
    for stage, own in zip(stages, (first, middle, last), strict=True):
        sent = np.where(passes > 1, np.maximum(through / ways.p, passes * stage.send), stage.send + stage.wp / n)
        period = np.maximum(stage.forward + stage.backward, sent)
        found = np.maximum(found, n * period - stage.wrap + through - own)
    best: Column = found + stages[0].last
    return best
