"""Measurements of a run's resources before it runs.

They are the blocks' kernels, the folder's storage, and the links. The closed form predicts the run from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import cycle

import numpy as np
from attrs import evolve, frozen

from ..backends import Pointer
from .plans import KINDS, BlockTimes, Machine, columns
from .prediction import corrected_terms
from .running import Runner
from .storage_rate import StorageRate, storage_rate

#: Bytes and passes over all layers after which a measurement of storage may end.
MIN_TIMED_BYTES, MIN_PASSES = 64 << 20, 4
#: Bytes of layers that are read in one go, so that storage is not idle between them, as in a run.
BURST_BYTES = 256 << 20


@frozen
class RunPrediction:
    """Prediction of a run.

    It has the measured machine, the predicted parts of the time of one mini-batch, and the measured storage.
    """

    machine: Machine
    terms: Mapping[str, float]
    reads: StorageRate
    writes: StorageRate | None

    @property
    def storage(self) -> tuple[str, ...]:
        """Sentences about storage for people."""
        written = (self.writes.text("takes"),) if self.writes else ()
        return (self.reads.text("gives"), *written)


def measure_machine(runner: Runner) -> tuple[Machine, StorageRate, StorageRate | None]:
    """Return the plan's machine with this machine's measurements.

    All processes measure at once, as they will run at once.
    """
    machine, model, way = runner.plan.machine, runner.model, runner.way
    kinds = KINDS if model.vocabulary else KINDS[:1]
    if runner.level < 2:  # those of a step before, whose memory the timed layers need
        runner.free_weights(None)
    times = [time_layer(runner, kind) for kind in kinds]
    reads, writes = time_storage(runner)
    measured = []
    for kind, seconds in zip(kinds, times, strict=True):
        # The slowest process counts.
        forward, backward = (-runner.engine.minimum(-round(1e9 * t)) / 1e9 for t in seconds)
        measured.append(BlockTimes(model.name, way.micro, forward, backward, backward, way.wp, kind))
    link = time_link(runner)
    between, leaving = (link, link * machine.gpus) if link else (machine.gpu_link, machine.node_link)
    found = evolve(
        machine,
        storage_read=reads.each,
        storage_write=(writes or reads).each,
        host_link=None,
        gpu_link=between,
        node_link=leaving,
        measured=tuple(measured),
    )
    return found, reads, writes


def predict(runner: Runner) -> RunPrediction:
    """Measure the machine and predict the parts of a mini-batch's time."""
    machine, reads, writes = measure_machine(runner)
    return RunPrediction(machine, _terms(runner, machine), reads, writes)


def _terms(runner: Runner, machine: Machine) -> dict[str, float]:
    nodes = max(1, -(-runner.way.gpus // machine.gpus))
    ways, machine = columns([runner.way]), evolve(machine, nodes=nodes)
    return corrected_terms(ways, runner.model, machine, training=runner.plan.training).row(0)


@frozen
class StorageUtilisation:
    """Storage bandwidth during a run.

    `part` is relative to the measurement before, `seconds` the mini-batch that it predicts.
    """

    part: float
    seconds: float


def storage_utilisation(runner: Runner, predicted: RunPrediction) -> StorageUtilisation | None:
    """Return the storage bandwidth during a run, or None.

    It is the mean of all processes, which all call this; None where nothing moved. Only the seconds with outstanding
    requests count, so that an idle storage does not appear slow.
    """
    report, machine, engine = runner.report, predicted.machine, runner.engine
    expected = report.read_bytes / machine.storage_read + report.written_bytes / machine.storage_write
    expected, busy = engine.total(expected), engine.total(report.storage)
    if min(expected, busy) <= 0:
        return None
    part = expected / busy
    found = evolve(machine, storage_read=part * machine.storage_read, storage_write=part * machine.storage_write)
    return StorageUtilisation(part, _terms(runner, found)["total"])


def _seconds(run: Callable[[], None], repeats: int = 3) -> float:
    """Return the median time of a few runs after one to warm up."""
    run()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return float(np.median(found))


def time_layer(runner: Runner, kind: str) -> tuple[float, float]:
    """Return the seconds of a layer's forward and backward kernels.

    They are 0 for a kind that this stage lacks, else for a micro-batch, on random numbers or zeros as tokens.
    """
    layer = next((layer for layer, found in runner.kinds.items() if found == kind), None)
    if layer is None:
        return 0.0, 0.0
    x, y, dy = (runner.acts.take() for _ in range(3))
    values = np.random.default_rng(0).standard_normal(runner.elements, np.float32).astype(runner.dtype.numpy)
    tokens = np.zeros(runner.way.micro * runner.model.sequence, np.int32)
    runner.device.upload(Pointer(x), tokens if kind == "embedding" else values)
    runner.device.upload(Pointer(dy), tokens if kind == "head" else values)
    loaded = layer not in runner.weights
    if loaded:
        runner.weights[layer] = runner.weight_slots.take()
        runner.move_weights(layer).wait()
    inner = runner.saved_slots.take() if runner.keeps and kind == "block" else None
    forward = backward = 0.0
    if kind != "head":
        forward = _computing(runner, lambda: runner.layer_forward(layer, Pointer(x), Pointer(y), inner))
    elif not runner.plan.training:
        forward = _computing(runner, lambda: runner.next_token_scores(layer, Pointer(x)))
    if runner.plan.training:
        dx, total = runner.acts.take(), runner.sum_slots.take()
        places, sums = (Pointer(x), Pointer(dy), Pointer(dx)), (runner.zeros, total)
        backward = _computing(runner, lambda: runner.layer_backward(layer, places, sums, inner))
        runner.acts.give(dx)
        runner.sum_slots.give(total)
    for buffer in (x, y, dy):
        runner.acts.give(buffer)
    if inner is not None:
        runner.saved_slots.give(inner)
    if loaded:
        runner.weight_slots.give(runner.weights.pop(layer))
    runner.report.compute = runner.report.exchange = 0.0
    return forward, backward


def _computing(runner: Runner, run: Callable[[], object], repeats: int = 3) -> float:
    """Return the median seconds of a few runs after a warm-up, without the sums over GPUs between them."""
    run()
    found = []
    for _ in range(repeats):
        begin, summed = time.perf_counter(), runner.report.exchange
        run()
        found.append(time.perf_counter() - begin - (runner.report.exchange - summed))
    return float(np.median(found))


def time_storage(runner: Runner) -> tuple[StorageRate, StorageRate | None]:
    """Return the read and, in training, the write rate of the folder.

    Layers follow each other as in a run, all of them in turn. Writing goes to the gradients' files, which every step
    overwrites.
    """
    store, slot = runner.store, Pointer(runner.weight_slots.take())
    files = {layer: store.layout("weights", layer) for layer in runner.names}
    total, largest = (count(made.nbytes for made in files.values()) for count in (sum, max))
    enough = max(MIN_TIMED_BYTES, MIN_PASSES * total)
    layers, burst = cycle(runner.names), max(1, min(4, BURST_BYTES // largest))

    def read() -> int:
        """Fetch some layers, each requested before the previous one arrives."""
        some = [next(layers) for _ in range(burst)]
        coming = runner.move_weights(some[0], slot)
        for layer in some[1:]:
            following = runner.move_weights(layer, slot)
            coming.wait()
            coming = following
        coming.wait()
        return sum(files[layer].nbytes for layer in some)

    def write() -> int:
        layer = next(layers)
        made = files[layer]
        runner.mover.store(store.path("gradients", layer), made.start, made.nbytes, slot, "probe")
        runner.mover.wait_stored("probe")
        if not runner.disk.direct:
            runner.disk.sync()  # else it is the page cache that is measured
        return made.nbytes

    reads, writes = storage_rate(runner.engine, read, enough), None
    if runner.plan.training:
        writes = storage_rate(runner.engine, write, enough)
        runner.disk.sync()
    runner.weight_slots.give(slot.buffer)
    return reads, writes


def time_link(runner: Runner) -> float | None:
    """Return the bytes a second between GPUs, None for one process.

    They are of a sum over a layer's GPUs, else from stage to stage, else of a sum of gradients between groups.
    """
    way, engine = runner.way, runner.engine
    if way.wp > 1:
        place, nbytes = Pointer(runner.acts.take()), runner.boundary
        seconds = _seconds(lambda: engine.join(place, runner.elements, runner.dtype), 5)
        runner.acts.give(place.buffer)
        rate = 2 * (way.wp - 1) / way.wp * nbytes / max(seconds, 1e-9)
    elif way.p > 1:
        seconds = _seconds(lambda: _pass_on(runner), 3)
        rate = runner.boundary * (way.p - 1) / max(seconds, 1e-9)
    elif way.dp > 1 and runner.plan.training:
        layer, total = runner.names[-1], runner.sum_slots.take()
        nbytes, elements = runner.store.layout("weights", layer).nbytes, runner.store.elements(layer)
        seconds = _seconds(lambda: engine.sum(Pointer(total), elements, runner.dtype), 3)
        runner.sum_slots.give(total)
        rate = 2 * (way.dp - 1) / way.dp * nbytes / max(seconds, 1e-9)
    else:
        return None
    return float(engine.minimum(round(rate)))


def _pass_on(runner: Runner) -> None:
    """Send one activation from the first stage through all to the last, and wait for all processes."""
    buffer = runner.acts.take()
    nbytes, stage = runner.boundary, runner.stage
    if stage > 0:
        runner.engine.receive(Pointer(buffer), nbytes, stage - 1, backward=False)
    if stage < runner.way.p - 1:
        runner.engine.send(Pointer(buffer), nbytes, stage + 1, backward=False)()
    runner.engine.minimum(0)
    runner.acts.give(buffer)
