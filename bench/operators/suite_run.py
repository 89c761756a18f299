"""Run of a suite: tunes cases together, times each beside its peers."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from attrs import define, field
from cuts.backends.device import Device
from cuts.backends.source.emit import emit
from cuts.bench.operators.contenders import Peers, PeerWay
from cuts.bench.operators.shapes import Case
from cuts.bench.operators.timing import Contender, Turns, in_order, in_turns
from cuts.bench.operators.tuning import Tuned, TunedBuffers, bind, cold_sets, fill, first_line, is_device_lost, tune
from cuts.bench.tools.goals import row_line
from cuts.bench.tools.records import Row, keep_row, key_of
from cuts.ir.errors import CutsError
from cuts.ir.machine import Target
from cuts.search.opening import tuning_session
from cuts.search.session import TuningSession
from cuts.search.settings import Settings


@define
class SuiteRun:
    """Device, options, and rows so far of a run."""

    suite: ClassVar[str] = ""

    options: argparse.Namespace
    target: Target
    device: Device
    torch: Any
    rows: list[Row]
    facts: dict[str, Any]
    begin: float = field(factory=time.monotonic)
    turns: Turns = field(factory=Turns)

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the call should end."""
        return float(self.options.limit) - (time.monotonic() - self.begin)

    def say(self, what: str) -> None:
        """Print progress with the seconds so far."""
        print(f"{time.monotonic() - self.begin:.1f} s: {what}", file=sys.stderr, flush=True)

    def keep(self, row: Row) -> None:
        """Write a row to the file and print it."""
        with self.turns.turn():
            self.rows = keep_row(self.options.out, row)
        print(row_line(row), flush=True)

    def head(self, kind: str, name: str, batch: int = 1, precision: str = "fp32") -> Row:
        """Return a row without times."""
        named = {"suite": self.suite, "class": kind, "name": name, "batch": batch, "precision": precision}
        return {**named, "cuts_ms": None, "peers": {}, "budget_s": self.options.budget, **self.facts}

    def known_peers(self, key: str) -> dict[str, float]:
        """Return a case's recorded peers on this device, with `--reuse`."""
        found = (r["peers"] for r in self.rows if key_of(r) == key and r["device"] == self.device.name and r["peers"])
        return dict(next(found, {})) if self.options.reuse else {}

    def tune(self, cases: Sequence[Case]) -> Sequence[Tuned]:
        """Tune cases together within their budget and the time that is left."""
        with self._session(len(cases)) as session:
            tuned = tune(cases, self.target, emit, session)
            if session is not None:
                self.say(f"{len(cases)} operations are tuned: {session.tuner.statistics.record()}")
        return tuned

    def _session(self, count: int) -> AbstractContextManager[TuningSession | None]:
        if not self.options.budget:
            return nullcontext(None)
        budget = min(self.options.budget * count, max(5.0, self.remaining_seconds - 2.0 * count))
        named = getattr(self.options, "strategy", None)
        own = Settings(strategy=named, aided=False, prove=False) if named else None
        return tuning_session(self.target, budget=budget, devices=self.options.devices, settings=own, fresh=bool(own))

    def measure(
        self,
        head: Row,
        tuned: Tuned | str,
        call: Callable[[], Callable[..., Any]],
        ways: Callable[[Peers], Sequence[PeerWay]],
        beside: Callable[[], Sequence[Contender]] = tuple,
    ) -> Row:
        """Return the row of a tuned case, with times or a failure.

        `call` makes PyTorch's function of the case, `ways` its peers; contenders `beside` them have times of their own.
        An error that later rows would meet is raised.
        """
        if isinstance(tuned, str):
            return head | {"failure": tuned}
        row = head | {"bound_ms": tuned.bound * 1e3}
        if head["budget_s"]:
            row["kernels"] = [describe(record) for record in tuned.records]
        try:
            self.device.build(tuned.kernels)  # kernels are compiled and numbers drawn before the turn
            first = fill(tuned, self.device)
            with self.turns.turn():
                return row | self._times(first, call, ways, beside)
        except (CutsError, RuntimeError) as error:  # the latter are PyTorch's own, memory among them
            if is_device_lost(error):
                raise
            return row | {"failure": first_line(error)}
        finally:
            if self.torch is not None:
                self.torch.cuda.empty_cache()

    def _times(
        self,
        first: TunedBuffers,
        call: Callable[[], Callable[..., Any]],
        ways: Callable[[Peers], Sequence[PeerWay]],
        make_beside: Callable[[], Sequence[Contender]],
    ) -> Row:
        tuned, sets = first.tuned, cold_sets(first, self.target.l2_bytes)
        launches = bind(tuned, self.device, sets)
        beside = make_beside()
        contenders = [Contender("cuts", self.device.capture(in_order(launches)), len(sets)), *beside]
        known, found = self.known_peers(tuned.case.key), Row()
        if self.torch is not None:
            peers = Peers(tuned, self.device, self.torch, sets, call())
            launches[0]()
            found |= {"wrong": wrong} if (wrong := peers.difference()) else {}
            for name, make in () if known else ways(peers):
                try:
                    contenders.append(make())
                except (CutsError, RuntimeError) as error:  # rows that cannot be recorded, or a library that refuses
                    found.setdefault("missing", {})[name] = first_line(error)
        timings = in_turns(self.device, contenders)
        times = {name: timing.median * 1e3 for name, timing in timings.items()}
        found |= {"cuts_ms": times.pop("cuts"), "spread": timings["cuts"].spread, "sets": len(sets)}
        found |= {f"{each.name}_ms": times.pop(each.name) for each in beside}
        return found | {"peers": times or known} | ({"reused": True} if known else {})


def describe(record: Any) -> dict[str, object]:
    """Return a row's record of a kernel: parameters, times, limits."""
    keys = ("ops", "algorithms", "parameters", "measured", "estimate", "limit", "bound")
    return {key: record[key] for key in keys if key in record}
