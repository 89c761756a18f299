"""Summary of a search, as JSON values and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from .database import Measurement
from .session import TuningSession
from .trace import Statistics

#: Largest number of printed rejection reasons.
MAX_PRINTED_REASONS = 8


def summary_values(session: TuningSession) -> dict[str, object]:
    """Return the figures of a search as JSON values.

    These are kernels, candidates by outcome, time by phase, and the audit.
    """
    measured = [(c, p) for p, c in session.findings.pairs if c.seconds is not None]
    shares = [c.candidate.bound / c.seconds for c, _ in measured if c.seconds]
    values: dict[str, object] = {
        "cached": session.outcome.cached,
        "kernels": len(session.findings.choices),
        "measured": len(measured),
        "sum of kernels": sum((c.seconds or 0.0) * p.uses for c, p in measured),
        "median bound / time": round(median(shares), 3) if shares else None,
        "elapsed": round(session.tuner.executor.elapsed, 3),
        "interrupted": session.tuner.executor.interrupted,
        "budget used up": session.tuner.executor.expired,
    }
    values |= {"not compared": list(session.outcome.uncompared)} if session.outcome.uncompared else {}
    values |= session.tuner.statistics.record()
    if session.outcome.audits:
        values["audit"] = [a.record() for a in session.outcome.audits]
    return values


def measured_candidates(session: TuningSession) -> dict[str, list[Measurement]]:
    """Return the measurements of each kernel by its task's key, fastest first.

    Failed ones come last.
    """
    database = session.tuner.executor.database
    return {
        p.key: sorted(database.measurements(p), key=lambda t: (not t.ok, t.seconds or 0.0, t.schedule))
        for p in session.findings.problems
    }


def summary_lines(session: TuningSession) -> Iterator[str]:
    """Yield the figures of a search in a few lines."""
    if session.outcome.cached:
        yield "search: nothing to do, this model was tuned before (--further searches on, --strategy NAME anew)"
        return
    statistics = session.tuner.statistics
    measured = [(c, p) for p, c in session.findings.pairs if c.seconds is not None]
    total = sum((c.seconds or 0.0) * p.uses for c, p in measured)
    kept = sum(c.origin == "database" for c, _ in measured)
    counted = f"{len(measured)} of {len(session.findings.choices)} kernels measured, {kept} of them in earlier sessions"
    yield f"search: {counted}; together {total * 1e6:.4g} us"
    yield from (f"not compared: {note}" for note in session.outcome.uncompared)
    if statistics.compiled or statistics.reused:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(statistics.outcomes.items()))
        proven = (
            f"{statistics.slower / statistics.legal:.1%} of the legal ones proven slower than the winners, "
            if statistics.legal
            else ""
        )
        yield (
            f"candidates: {statistics.points:,} points, {proven}{statistics.compiled} compiled ({outcomes}),"
            f" {statistics.timed} timed, {statistics.dropped} dropped after a few runs, {statistics.reused} known from "
            f"earlier sessions"
            + (f", {statistics.stale} earlier results of code that is made otherwise today" if statistics.stale else "")
        )
        yield from _rejected_lines(statistics)
        yield "time: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in statistics.phases.items())
    if session.outcome.audits:
        yield from _audit_lines(session)


def _rejected_lines(statistics: Statistics) -> Iterator[str]:
    """Yield a line for each reason of rejection, wrong results first."""
    for each in sorted(statistics.rejected, key=lambda r: (r.outcome != "wrong", -r.count))[:MAX_PRINTED_REASONS]:
        yield f"  {each.count} {each.outcome} of {each.kernel or 'a kernel'}: {each.reason or 'no reason is known'}"


def _audit_lines(session: TuningSession) -> Iterator[str]:
    audits = session.outcome.audits
    beaten = [a for a in audits if a.faster]
    yield (
        f"audit: {sum(a.timed for a in audits)} other points of {len(audits)} spaces timed;"
        f" {len(beaten)} of the spaces have a faster one,"
        f" {sum(a.lost for a in audits)} of the faster points were discarded as proven slower,"
        f" {sum(a.unsound for a in audits)} points ran faster than their lower bound;"
        f" median bound / time {median(a.tightness for a in audits):.2f}"
    )
    for each in beaten:
        yield f"  {each.label}: {each.chosen * 1e6:.4g} us chosen, {each.best * 1e6:.4g} us possible"
