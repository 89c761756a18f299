"""The tables of the tuning database: problems with their winners, trials, decisions about graphs, and costs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from attrs import astuple

from ..decisions import DecidedGraph
from ..problem import Problem, trial_key
from .file import DatabaseFile
from .stored import ANSWER_KINDS, TRIAL_KINDS, WINNER_KINDS, Result, Trial, Winner, fits

_TRIAL = "schedule, outcome, trials.seconds, trials.spread, registers, trials.source, message, bound, score"


class Database(DatabaseFile):
    """Reads and writes what is known of kernels and of graphs."""

    # ---- problems

    def winner(self, problem: Problem) -> Winner | None:
        """Return what a finished search chose, nothing where none was finished."""
        with self.errors() as db:
            row = db.execute(
                "select best, seconds, spread, source, trials, points, proven from problems where key = ? and done = 1",
                (problem.key,),
            ).fetchone()
        return Winner(*row) if row and fits(row, WINNER_KINDS) else None

    def finish(self, problem: Problem, winner: Winner) -> None:
        """Keep the choice of a finished search."""
        self.register(problem)
        with self.errors() as db:
            db.execute(
                "update problems set done = 1, label = ?, best = ?, seconds = ?, spread = ?, source = ?, trials = ?, "
                "points = ?,"
                " proven = ?, at = ? where key = ?",
                (problem.label, *astuple(winner), time.time(), problem.key),
            )

    def register(self, problem: Problem) -> None:
        """Make a problem known, so that its key can be explained."""
        with self.errors() as db:
            db.execute(
                "insert or ignore into problems (key, description, work, label, at) values (?, ?, ?, ?, ?)",
                (problem.key, problem.description, problem.work, problem.label, time.time()),
            )

    def evict(self, problem: Problem) -> None:
        """Forget all results of a problem: one of them did not hold. Its winner stays as a hint."""
        with self.errors() as db:
            db.execute("delete from trials where problem = ?", (problem.key,))
            db.execute("update problems set done = 0 where key = ?", (problem.key,))

    # ---- trials

    def trials(self, problem: Problem) -> list[Trial]:
        """Return all results of a problem, in the order of its points."""
        with self.errors() as db:
            rows = db.execute(
                f"select {_TRIAL} from trials where problem = ? order by score, schedule", (problem.key,)
            ).fetchall()
        return [Trial(*row) for row in rows if fits(row, TRIAL_KINDS)]

    def recorded(self, work: str) -> list[Trial]:
        """Return all results for the same work, on whatever machine, the oldest first."""
        joined = "trials join problems on problems.key = trials.problem"
        query = f"select {_TRIAL} from {joined} where work = ? order by trials.at"
        with self.errors() as db:
            rows = db.execute(query, (work,)).fetchall()
        return [Trial(*row) for row in rows if fits(row, TRIAL_KINDS)]

    def measured(self, machine: Mapping[str, str]) -> list[tuple[str, str, dict[str, float]]]:
        """Return the label, the work and the seconds by schedule of every problem of a machine."""
        with self.errors() as db:
            rows = db.execute(
                "select p.key, p.label, p.work, p.description, t.schedule, t.seconds from problems p join trials t "
                "on t.problem = p.key where t.outcome = 'ok' and t.seconds is not null order by p.key, t.schedule"
            ).fetchall()
        found: dict[str, tuple[str, str, dict[str, float]]] = {}
        for key, label, work, description, schedule, seconds in rows:
            if _machine(description) == dict(machine) and isinstance(seconds, (int, float)):
                found.setdefault(key, (label, work, {}))[2][schedule] = float(seconds)
        return list(found.values())

    def record(self, problem: Problem, trials: Sequence[Trial]) -> None:
        """Keep results; a later one of the same schedule replaces the earlier."""
        rows = [
            (problem.key, t.schedule, trial_key(problem.key, t.schedule), t.outcome, t.seconds, t.spread, t.registers,
             t.source, t.message,
             t.bound, t.score, time.time())
            for t in trials
        ]  # fmt: skip
        with self.errors() as db:
            db.executemany("insert or replace into trials values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def hints(self, problem: Problem, most: int = 4) -> list[str]:
        """Return the best schedules that other machines, or other versions, found for the same work."""
        with self.errors() as db:
            rows = db.execute(
                "select best from problems where work = ? and (key <> ? or done = 0) and best is not null "
                "order by at desc limit ?",
                (problem.work, problem.key, most),
            ).fetchall()
        return list(dict.fromkeys(row[0] for row in rows if isinstance(row[0], str)))

    # ---- results that travel

    def results(self) -> tuple[Result, ...]:
        """Return the best result of every problem that has one, by key."""
        chosen = "p.key, p.description, p.label, p.done"
        with self.errors() as db:
            rows = db.execute(
                f"select {chosen}, best, seconds, spread, source, trials, points, proven from problems p "
                "where done = 1 and best is not null union all "
                f"select {chosen}, t.schedule, min(t.seconds), t.spread, t.source, 1, 0.0, 0.0 from problems p "
                "join trials t on t.problem = p.key where p.done = 0 and t.outcome = 'ok' group by p.key order by 1"
            ).fetchall()
        return tuple(
            Result(key, description, label, bool(done), Winner(*best))
            for key, description, label, done, *best in rows
            if fits(best, WINNER_KINDS)
        )

    def adopt(self, result: Result, work: str) -> bool:
        """Take a result from elsewhere, of the work that its description states; say whether it is news.

        A finished search is kept as it is, and so is a faster time of an unfinished one.
        """
        found = result.winner
        with self.errors() as db:
            known = db.execute("select done from problems where key = ?", (result.key,)).fetchone()
            best = db.execute(
                "select min(seconds) from trials where problem = ? and outcome = 'ok'", (result.key,)
            ).fetchone()[0]
            if (known and known[0]) or (best is not None and best <= found.seconds):
                return False
            now = time.time()
            db.execute(
                "insert or ignore into problems (key, description, work, label, at) values (?, ?, ?, ?, ?)",
                (result.key, result.description, work, result.label, now),
            )
            db.execute(
                "update problems set done = ?, best = ?, seconds = ?, spread = ?, source = ?, trials = ?, points = ?, "
                "proven = ?, at = ? where key = ?",
                (int(result.finished), *astuple(found), now, result.key),
            )
            trial = (result.key, found.schedule, trial_key(result.key, found.schedule), "ok", found.seconds)
            db.execute(
                "insert or replace into trials values (?, ?, ?, ?, ?, ?, 0, ?, '', 0.0, 0.0, ?)",
                (*trial, found.spread, found.source, now),
            )
        return True

    # ---- decisions about graphs

    def answer(self, key: str) -> DecidedGraph | None:
        """Return what is known of a question."""
        return next(iter(self._answers("where key = ?", key)), None)

    def may_know(self, label: str) -> bool:
        """Whether there is a final answer about a graph of this name."""
        return bool(self._answers("where label = ? and finished", label))

    def answers(self) -> tuple[DecidedGraph, ...]:
        """Return all that is known of graphs, by key."""
        return self._answers("order by key")

    def keep_answer(self, answer: DecidedGraph) -> None:
        """Keep what a search decided; it replaces what was decided before."""
        row = (answer.key, answer.description, answer.label, answer.decisions, json.dumps(answer.problems),
               answer.seconds, int(answer.finished), time.time())  # fmt: skip
        with self.errors() as db:
            db.execute("insert or replace into decisions values (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def drop_answer(self, key: str) -> None:
        """Forget what was decided about a question."""
        with self.errors() as db:
            db.execute("delete from decisions where key = ?", (key,))

    def adopt_answer(self, answer: DecidedGraph) -> bool:
        """Take decisions from elsewhere, unless those that are known are as good; say whether they are news."""
        known = self.answer(answer.key)
        if known is not None and known.seconds <= answer.seconds:
            return False
        self.keep_answer(answer)
        return True

    def _answers(self, which: str, *values: str) -> tuple[DecidedGraph, ...]:
        columns = "key, description, label, decisions, problems, seconds, finished"
        with self.errors() as db:
            rows = db.execute(f"select {columns} from decisions {which}", values).fetchall()
        return tuple(
            DecidedGraph(key, description, label, decisions, tuple(json.loads(problems)), seconds, bool(finished))
            for key, description, label, decisions, problems, seconds, finished in rows
            if fits((key, description, label, decisions, problems, seconds, finished), ANSWER_KINDS)
        )

    # ---- modelled costs, which are slow to compute again

    def cost(self, key: str) -> float | None:
        """Return a kept cost."""
        with self.errors() as db:
            row = db.execute("select seconds from costs where key = ?", (key,)).fetchone()
        return float(row[0]) if row and isinstance(row[0], (int, float)) else None

    def keep_cost(self, key: str, seconds: float) -> None:
        """Keep a cost."""
        with self.errors() as db:
            db.execute("insert or replace into costs values (?, ?)", (key, seconds))


def _machine(description: object) -> object:
    """Return the machine that a description names; nothing where it is none of ours."""
    try:
        found = json.loads(description) if isinstance(description, str) else None
    except ValueError:
        return None
    return found.get("machine") if isinstance(found, dict) else None
