"""Tables of the tuning database: problems, trials, decisions and costs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from attrs import astuple, evolve

from ..tasks import DecisionRecord, TuningTask, measurement_key
from .records import ANSWER_KINDS, TRIAL_KINDS, WINNER_KINDS, Measurement, Result, Winner, fits
from .versions import VersionedFile

#: Join with the sources that this version prints.
_JOIN_WRITTEN = "left join written on written.point = trials.key and written.version = ?"
#: Columns of a winner.
_WINNER = "best, seconds, spread, source, trials, points, proven"
_TRIAL = "schedule, outcome, trials.seconds, trials.spread, registers, trials.source, message, bound, score"


class Database(VersionedFile):
    """Tuning database of kernels and graphs."""

    # ---- tuning tasks

    def winner(self, problem: TuningTask) -> Winner | None:
        """Return the winner of a finished search, None without one."""
        row = self.row(f"select {_WINNER} from problems where key = ? and done = 1", problem.key)
        return Winner(*row) if row and fits(row, WINNER_KINDS) else None

    def finish(self, problem: TuningTask, winner: Winner) -> None:
        """Store the winner of a finished search."""
        self.register(problem)
        self.write("update problems set label = ? where key = ?", (problem.label, problem.key))
        self._set_winner(problem.key, winner, True)

    def register(self, problem: TuningTask) -> None:
        """Store a task, so that its key can be explained."""
        self._register(problem.key, problem.description, problem.work, problem.label)

    def _register(self, *facts: str) -> None:
        columns = "(key, description, work, label, at)"
        self.write(f"insert or ignore into problems {columns} values (?, ?, ?, ?, ?)", (*facts, time.time()))

    def _set_winner(self, key: str, winner: Winner, finished: bool) -> None:
        self.write(
            "update problems set done = ?, best = ?, seconds = ?, spread = ?, source = ?, trials = ?, points = ?, "
            "proven = ?, at = ? where key = ?",
            (int(finished), *astuple(winner), time.time(), key),
        )

    def invalidate(self, problem: TuningTask) -> None:
        """Mark the search of a task with an invalid result as unfinished.

        The result stays as a hint. An offered result from another machine replaces it.
        """
        self.write("update problems set done = 0 where key = ?", (problem.key,))
        row = self.row(f"select {_WINNER}, finished from offers where problem = ?", problem.key)
        self.write("delete from offers where problem = ?", (problem.key,))
        if row is not None and fits(row[:-1], WINNER_KINDS):
            self._put(Result(problem.key, problem.description, problem.label, bool(row[-1]), Winner(*row[:-1])))

    # ---- measurements

    def measurements(self, problem: TuningTask) -> list[Measurement]:
        """Return all measurements of a task by score, with their validity."""
        rows = self.rows(
            f"select {_TRIAL}, written.source = trials.source from trials {_JOIN_WRITTEN} "
            "where problem = ? order by score, schedule",
            self.version,
            problem.key,
        )
        known = {1: True, 0: False}
        return [evolve(Measurement(*row), holds=known.get(holds)) for *row, holds in rows if fits(row, TRIAL_KINDS)]

    def measurements_of_work(self, work: str) -> list[Measurement]:
        """Return all measurements of the same work on any machine, oldest first."""
        joined = "trials join problems on problems.key = trials.problem"
        query = f"select {_TRIAL} from {joined} where work = ? order by trials.at"
        return [Measurement(*row) for row in self.rows(query, work) if fits(row, TRIAL_KINDS)]

    def measured_tasks(self, machine: Mapping[str, str]) -> list[tuple[str, str, dict[str, float]]]:
        """Return label, work and seconds by schedule of a machine's tasks.

        Kernels that are known to be printed differently today are left out.
        """
        rows = self.rows(
            "select p.key, p.label, p.work, p.description, t.schedule, t.seconds from problems p join trials t "
            "on t.problem = p.key left join written w on w.point = t.key and w.version = ? "
            "where t.outcome = 'ok' and t.seconds is not null and t.source = coalesce(w.source, t.source) "
            "order by p.key, t.schedule",
            self.version,
        )
        found: dict[str, tuple[str, str, dict[str, float]]] = {}
        for key, label, work, description, schedule, seconds in rows:
            if _machine(description) == dict(machine) and isinstance(seconds, (int, float)):
                found.setdefault(key, (label, work, {}))[2][schedule] = float(seconds)
        return list(found.values())

    def transferred_times(self, problem: TuningTask) -> dict[str, float]:
        """Return the seconds by schedule of the same work on another machine.

        Of several machines, or versions, it is the one with the most measurements.
        """
        rows = self.rows(
            "select p.key, t.schedule, t.seconds from problems p join trials t on t.problem = p.key "
            "where p.work = ? and p.key <> ? and t.outcome = 'ok' and t.seconds > 0 order by p.key, t.schedule",
            problem.work,
            problem.key,
        )
        found: dict[str, dict[str, float]] = {}
        for key, schedule, seconds in rows:
            if isinstance(schedule, str) and isinstance(seconds, float):
                found.setdefault(key, {})[schedule] = seconds
        return max(found.values(), key=len, default={})

    def record(self, problem: TuningTask, trials: Sequence[Measurement], today: bool = False) -> None:
        """Store measurements; a later one of the same schedule replaces the earlier.

        Measurements of `today` are of kernels that this version printed.
        """
        if today:
            self.note_sources({measurement_key(problem.key, t.schedule): t.source for t in trials})
        self._put_trials(problem.key, trials)

    def _put_trials(self, problem: str, trials: Sequence[Measurement]) -> None:
        rows = [
            (problem, t.schedule, measurement_key(problem, t.schedule), t.outcome, t.seconds, t.spread, t.registers,
             t.source, t.message, t.bound, t.score, time.time())
            for t in trials
        ]  # fmt: skip
        self.write("insert or replace into trials values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", *rows)

    def hints(self, problem: TuningTask, most: int = 4) -> list[str]:
        """Return the best schedules of other machines for the same work."""
        rows = self.rows(
            "select best from problems where work = ? and (key <> ? or done = 0) and best is not null "
            "order by at desc limit ?",
            problem.work,
            problem.key,
            most,
        )
        return list(dict.fromkeys(row[0] for row in rows if isinstance(row[0], str)))

    # ---- portable results

    def results(self) -> tuple[Result, ...]:
        """Return the best result of every task that has one, by key."""
        chosen = "p.key, p.description, p.label, p.done"
        rows = self.rows(
            f"select {chosen}, {_WINNER} from problems p where done = 1 and best is not null union all "
            f"select {chosen}, t.schedule, min(t.seconds), t.spread, t.source, 1, 0.0, 0.0 from problems p "
            "join trials t on t.problem = p.key left join written w on w.point = t.key and w.version = ? "
            "where p.done = 0 and t.outcome = 'ok' and t.source = coalesce(w.source, t.source) "
            "group by p.key order by 1",
            self.version,
        )
        return tuple(
            Result(key, description, label, bool(done), Winner(*best))
            for key, description, label, done, *best in rows
            if fits(best, WINNER_KINDS)
        )

    def adopt(self, result: Result, work: str) -> bool:
        """Add a result of another machine; return whether it is new.

        A finished search is kept, and so is a faster time of an unfinished one. Both may be invalid in this version,
        which is found out on their next use: the result is stored as an offer for that case.
        """
        found = result.winner
        known = self.row("select done from problems where key = ?", result.key)
        (best,) = self.row(
            f"select min(seconds) from trials {_JOIN_WRITTEN} where problem = ? and outcome = 'ok' "
            "and trials.source = coalesce(written.source, trials.source)",
            self.version,
            result.key,
        )
        if (known and known[0]) or (best is not None and best <= found.seconds):
            offer = (result.key, *astuple(found), int(result.finished))
            self.write("insert or replace into offers values (?, ?, ?, ?, ?, ?, ?, ?, ?)", offer)
            return False
        self._register(result.key, result.description, work, result.label)
        self._put(result)
        return True

    def _put(self, result: Result) -> None:
        """Make a result the current one of its task."""
        found = result.winner
        self._set_winner(result.key, found, result.finished)
        self._put_trials(
            result.key, [Measurement(found.schedule, "ok", found.seconds, found.spread, source=found.source)]
        )

    def absorb(self, other: Database) -> None:
        """Add the measurements and times of another database; own ones stay."""
        for facts in other.rows("select key, description, work, label from problems"):
            self._register(*facts)
        for table in ("trials", "costs", "times", "written", "expected"):
            rows = other.rows(f"select * from {table}")
            marks = ", ".join("?" * len(rows[0])) if rows else ""
            self.write(f"insert or ignore into {table} values ({marks})", *rows) if rows else None

    # ---- decision records of graphs

    def answer(self, key: str) -> DecisionRecord | None:
        """Return the decision record of a question."""
        return next(iter(self._answers("where key = ?", key)), None)

    def may_know(self, label: str) -> bool:
        """Return whether a graph of this name has a final record."""
        return bool(self._answers("where label = ? and finished", label))

    def answers(self) -> tuple[DecisionRecord, ...]:
        """Return all decision records, by key."""
        return self._answers("order by key")

    def keep_answer(self, answer: DecisionRecord) -> None:
        """Store a decision record; it replaces an earlier one."""
        self._write_answer(answer, "decisions")

    def _write_answer(self, answer: DecisionRecord, table: str) -> None:
        row = (answer.key, answer.description, answer.label, answer.decisions, json.dumps(answer.problems),
               answer.seconds, int(answer.finished), time.time())  # fmt: skip
        self.write(f"insert or replace into {table} values (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def drop_answer(self, key: str) -> None:
        """Delete the decision records of a question, offered ones included."""
        for table in ("decisions", "offered_decisions"):
            self.write(f"delete from {table} where key = ?", (key,))

    def adopt_answer(self, answer: DecisionRecord) -> bool:
        """Add a record of another machine unless it is slower.

        Return whether it is new. Otherwise it is stored as an offer, since the known one's kernels may become invalid.
        """
        known = self.answer(answer.key)
        if known is not None and known.seconds <= answer.seconds:
            self._write_answer(answer, "offered_decisions")
            return False
        self.keep_answer(answer)
        return True

    def offered_answer(self, key: str) -> DecisionRecord | None:
        """Return the offered decision record of a question."""
        return next(iter(self._answers("where key = ?", key, table="offered_decisions")), None)

    def _answers(self, which: str, *values: str, table: str = "decisions") -> tuple[DecisionRecord, ...]:
        columns = "key, description, label, decisions, problems, seconds, finished"
        return tuple(
            DecisionRecord(key, description, label, decisions, tuple(json.loads(problems)), seconds, bool(finished))
            for key, description, label, decisions, problems, seconds, finished in self.rows(
                f"select {columns} from {table} {which}", *values
            )
            if fits((key, description, label, decisions, problems, seconds, finished), ANSWER_KINDS)
        )

    # ---- entries without a version: timing overheads, imported packs

    def cost(self, key: str) -> float | None:
        """Return a stored figure."""
        row = self.row("select seconds from costs where key = ?", key)
        return float(row[0]) if row and isinstance(row[0], (int, float)) else None

    def keep_cost(self, key: str, seconds: float) -> None:
        """Store a figure."""
        self.write("insert or replace into costs values (?, ?)", (key, seconds))


def _machine(description: object) -> object:
    """Return the machine of a description, None for another text."""
    try:
        found = json.loads(description) if isinstance(description, str) else None
    except ValueError:
        return None
    return found.get("machine") if isinstance(found, dict) else None
