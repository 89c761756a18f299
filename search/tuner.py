"""The tuner: which schedule of each problem is fastest, by measurement, within a budget and with an answer at any
moment.

Every problem starts with the best points by the model. While workers build candidates, the device checks and times
those that are ready; what is much slower than the best so far is dropped after three runs. When a batch has been
measured, the strategy proposes the next one, until neither time nor patience is left, or every point that remains is
proven slower. The few fastest are then timed in turns, and ties are broken by rule, so that noise does not choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Protocol, TypeVar

from attrs import frozen

from ..ir import ALGORITHMS_SHARE, SCHEDULES_SHARE, WHOLE, Target, UsageError
from ..passes import Alike, Fragment, Priced, Prices, Pricing, Roofline, cut_fragment, price, scheduled_alike
from ..passes.schedule import Candidate
from .build import Factory, Job
from .course import Search
from .database import KernelTime
from .earlier_results import best_elsewhere, finished, known_by_now, modelled
from .kernels import BundleMember, Written
from .launches import measure_launches
from .making import PAUSE
from .problem import Problem, schedule_text, trial_key
from .resources import Asking, Resources
from .rounds import Rounds
from .settings import QUICK, Settings, Statistics, TunedChoice
from .task import SearchTask

#: The priority of what is not needed at once.
LATER = 1.0
#: The part of the whole time that a kernel must lose against its floor to be searched deeper.
LOSING = 0.02

S = TypeVar("S")
T = TypeVar("T")


class Searches(Protocol):
    """Searches for several problems at once."""

    def run(self, tasks: Sequence[SearchTask]) -> dict[str, TunedChoice]:
        """Return a choice for every problem, by its key."""
        ...

    def search(self, tasks: Sequence[SearchTask]) -> Search:
        """Search until each problem has its choice or the run must end."""
        ...


@frozen
class Tuner:
    """Answers from the database and searches for what it does not know; `run` returns a choice for each problem,
    whatever happens.

    Behind an interrupt or the end of the budget every further run answers with what is known. A `frozen` tuner never
    searches; one that `guesses` takes the model's choice for what it does not know. `rounds` makes what searches: here,
    or at several places.
    """

    resources: Resources
    frozen: bool = False
    guesses: bool = False
    rounds: Callable[[Resources, Settings], Searches] = Rounds

    @property
    def statistics(self) -> Statistics:
        """What was done so far."""
        return self.resources.statistics

    @property
    def complete(self) -> bool:
        """Whether every search so far was brought to its end."""
        return self.resources.complete

    @property
    def alone(self) -> bool:
        """Whether this process and its workers are the only place where kernels are searched for, and do so."""
        return self.rounds is Rounds and not self.frozen

    def begin(self) -> None:
        """Start workers and device where time is limited, so that it does not pass before they answer."""
        if self.resources.budget.limited and not self.frozen:
            self.resources.start()

    def run(
        self,
        problems: Sequence[Problem],
        settings: Settings | None = None,
        share: float = WHOLE,
        known_will_do: bool = False,
        again: bool = False,
    ) -> list[TunedChoice]:
        """Return a choice for every problem; equal ones are searched once.
        The run ends when a share of the budget is used up. The best of a search that is not finished may do; where
        problems are searched `again`, that of one which is finished does not.

        Raises `UsageError` where only known results may be used and one is missing.
        """
        resources = self.resources
        resources.share = share
        unique = {p.key: p for p in problems}
        with self.statistics.phase("database"):
            kept = {key: None if again else finished(resources.database, p) for key, p in unique.items()}
        found = {key: choice for key, choice in kept.items() if choice is not None}
        if self.frozen or known_will_do:  # a search that its budget ended has an answer too
            database = resources.database
            known = {p.key: known_by_now(self._task(p), database) for p in unique.values() if p.key not in found}
            found |= {key: choice for key, choice in known.items() if choice is not None}
        if self.frozen and known_will_do:  # nothing can be measured, so what was best elsewhere is the best guess
            hinted = {p.key: best_elsewhere(resources.database, p) for p in unique.values() if p.key not in found}
            found |= {key: choice for key, choice in hinted.items() if choice is not None}
        if self.frozen and self.guesses:
            found |= {p.key: modelled(p) for p in unique.values() if p.key not in found}
        self.statistics.problems += 0 if again else len(unique)
        self.statistics.hits += len(found)
        missing = [problem for key, problem in unique.items() if key not in found]
        if missing and self.frozen:
            raise UsageError(
                f"{len(missing)} of {len(unique)} kernels are not in the tuning database; the first is "
                f"{missing[0].key[:12]},"
                f" {missing[0].label or 'without a name'}",
                hint="tune the same model for the same target with the same compiler once without --frozen",
            )
        if missing:
            found |= self.rounds(resources, settings or Settings()).run([self._task(p) for p in missing])
        return [found[p.key] for p in problems]

    def _task(self, problem: Problem) -> SearchTask:
        return SearchTask(problem, trials={t.schedule: t for t in self.resources.database.trials(problem)})

    def estimate(self, problems: Sequence[Problem], settings: Settings, share: float = WHOLE) -> list[float | None]:
        """Return about what each problem takes, from a short search; none where there was no time for it.

        Estimates are kept apart from later, better times: what was decided by them is decided alike in every further
        session, as long as their kernels are written as they were measured.
        """
        kept = {p.key: (p, self.resources.database.time(_estimate_name(p, settings))) for p in problems}
        times = {key: (Written(p, time.schedule), time) for key, (p, time) in kept.items() if time is not None}
        known: dict[str, float | None] = {**self._holding(times, share)}
        missing = {p.key: p for p in problems if p.key not in known}
        if missing and not self.frozen:
            self.resources.share = share
            known |= self._estimated(list(missing.values()), settings)
        return [known.get(p.key) for p in problems]

    def _holding(self, times: Mapping[str, tuple[Written, KernelTime]], share: float) -> dict[str, float]:
        """Return those times, in seconds by their keys, whose kernels are written as they were measured. Workers write
        what this version has not written yet, as far as there is time for it.
        """
        database = self.resources.database
        known = database.sources_today([written.name for written, _ in times.values()])
        asked = [written for written, _ in times.values() if written.name not in known]
        if asked:
            here = Factory().source
            found = [*map(here, asked)] if self.frozen else self._shared_out("source", asked, here, share)()
            new = {w.name: source for w, source in zip(asked, found, strict=True) if source is not None}
            database.note_sources(new)
            known |= new
        held = {key: time.seconds for key, (written, time) in times.items() if known.get(written.name) == time.source}
        self.statistics.stale += sum(key not in held and w.name in known for key, (w, _) in times.items())
        return held

    def _estimated(self, problems: Sequence[Problem], settings: Settings) -> dict[str, float | None]:
        """Search for what is not known, and keep what came of it; a search that was cut short has an estimate too, but
        not one to keep.

        What a long search found, here or for a pack, is none: beside it whatever was only looked at would lose, and
        with it every other way to cut the graph. A plan of ResNet-50 that was known with its kernels' times was never
        given up for one that takes 0.445 ms instead of 0.475.
        """
        found: dict[str, float | None] = {}
        tasks = [self._task(p) for p in problems]
        self.rounds(self.resources, settings).search(tasks)
        for task in tasks:
            key, choice = task.problem.key, task.choice
            if choice is not None and choice.seconds is not None:
                found[key] = choice.seconds
                self._keep_estimate(task.problem, settings, choice)
        cut = {t.problem.key: t.seconds for t in tasks if t.problem.key not in found and t.seconds < inf}
        return found | cut

    def _keep_estimate(self, problem: Problem, settings: Settings, choice: TunedChoice) -> None:
        """Keep what was measured, with the code that it was measured with."""
        database, schedule = self.resources.database, schedule_text(choice.candidate.schedule)
        point = trial_key(problem.key, schedule)
        source = database.sources_today([point]).get(point)
        if source is not None and choice.seconds is not None:
            database.keep_time(_estimate_name(problem, settings), KernelTime(choice.seconds, source, schedule))

    def together(self, launches: Sequence[tuple[Problem, Sequence[BundleMember]]]) -> list[float | None]:
        """Return what each launch of several groups takes, infinity where it fails, nothing where there was no time for
        it. A problem is what all groups of a launch compute together.
        """
        database = self.resources.database
        wanted = [Written(problem, members=tuple(members)) for problem, members in launches]
        names = [written.name for written in wanted]
        times = {n: (w, time) for n, w in zip(names, wanted, strict=True) if (time := database.time(n)) is not None}
        known = self._holding(times, WHOLE)
        missing = {n: launch for n, launch in zip(names, launches, strict=True) if n not in known}
        self.resources.share = WHOLE
        if missing and not self.frozen:
            with self.resources.interruptible():
                for name, taken in measure_launches(self.resources, missing):
                    known[name] = taken.seconds
                    database.keep_time(name, taken)
                    database.note_sources({name: taken.source})
        return [known.get(name) for name in names]

    def overhead(self, target: Target) -> float:
        """Return the seconds that timing adds to a kernel of a target;
        what was decided by it is decided alike in every further session.
        """
        key = f"overhead {target.name}"
        kept = self.resources.database.cost(key)
        if kept is None:
            if self.frozen or self.resources.budget.over():
                return 0.0
            with self.resources.interruptible():
                kept = self.resources.bench.overhead()
                self.resources.database.keep_cost(key, kept)
        return kept or 0.0

    def plan(self, fragments: Sequence[Fragment]) -> Callable[[], list[Priced]]:
        """Have small graphs cut into kernels by the workers side by side, and return what waits for them; none for
        those that there was no time for.
        """
        with self.statistics.phase("algorithms"):
            wait = self._shared_out("plan", fragments, cut_fragment, ALGORITHMS_SHARE, (LATER,), patient=True)

        def waited() -> list[Priced]:
            with self.statistics.phase("algorithms"):
                return wait()

        return waited

    def price(self, pricings: Sequence[Pricing]) -> Callable[[], list[Prices | None]]:
        """Have groups priced by the workers side by side, and return what waits for them; none for those that there was
        no time for. The plan rests on them that there is without a budget.
        """
        if not self.resources.started:  # there is nothing else for them to do
            return list
        return self._shared_out("price", pricings, price, SCHEDULES_SHARE, patient=True)

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return the kernels of each row as one of several in a launch, as workers find them side by side; nothing for
        those that there was no time for, and where no workers run.
        """
        if not self.resources.started:
            return [None] * len(rows)
        return self._shared_out("alike", rows, scheduled_alike, WHOLE, patient=True)()

    def _shared_out(
        self,
        method: str,
        asked: Sequence[S],
        here: Callable[[S], T],
        share: float,
        priority: tuple[float, ...] = (),
        patient: bool = False,
    ) -> Callable[[], list[T | None]]:
        """Have workers answer questions, the last first, and return what waits for the answers: this process answers
        them too, from the other end, until the first worker has, as workers take a while to start, or are at what was
        asked of them before. Not where workers have nothing else to do: they would wait for this process. Answers are
        waited for until a share of the budget is used up; where the plan rests on them that there is without a budget,
        who is `patient` waits until that is overdue.
        """
        resources = self.resources
        resources.share = share

        def over() -> bool:
            waits = patient and not resources.budget.overdue()
            return resources.interrupted if waits else resources.over()

        asking: Asking[T] = Asking([None] * len(asked), set(range(len(asked))))
        with resources.interruptible():
            for number in reversed(range(len(asked))) if not over() else ():
                resources.builder.submit(Job((asking, number), method, (asked[number],), priority))
            resources.asking.append(asking)

        def wait() -> list[T | None]:
            resources.share = share
            with resources.interruptible():
                alone = not resources.answering or len(resources.asking) > 1
                while asking in resources.asking and asking.waiting and not over():
                    for done in resources.collect(0.0 if alone else resources.pause or PAUSE):
                        alone = not resources.take_in(done) and alone
                    if alone and asking.waiting:
                        number = min(asking.waiting)
                        asking.answer(number, here(asked[number]))
                while asking in resources.asking and asking.waiting and (came := resources.collect(0.0)):
                    for done in came:  # while this process was at an answer
                        resources.take_in(done)
            resources.close_asking(asking)
            return asking.found

        return wait


# ---- what is left of a budget


def tune_each(problems: Sequence[Problem], tuner: Tuner, settings: Settings) -> list[TunedChoice]:
    """Return a choice for every problem, each of which is a program of its own; all are tuned together as one is by
    itself, so that what is left of their budget goes on deeper searches.
    """
    found = dict(enumerate(tuner.run(problems, settings)))
    found = search_deeper(problems, found, tuner, settings, WHOLE, apart=True)
    return [found[number] for number in range(len(problems))]


def search_deeper(
    problems: Sequence[Problem],
    found: Mapping[int, TunedChoice],
    tuner: Tuner,
    settings: Settings,
    share: float,
    apart: bool = False,
) -> dict[int, TunedChoice]:
    """Return choices, by the places of problems, in which those that lose most are the best of deeper searches.

    A search ends behind as many candidates, and as many that were no better, whatever the kernel takes. Of a plan that
    a few kernels decide, half of the budget was left then: 19 s of 40 for BERT-base, whose products took 905 us where
    873 had been found before.

    Kernels of one program lose what they lose of its time. Where each is a program of its own, which stands `apart`,
    one that a deeper search did not better is left, as it is where it stands alone.

    Nothing is done without a limit of time, where the search was cut short, and for a processor, which others use too.
    Whether the search was brought to its end is what it was before: it could have ended there.
    """
    resources, best = tuner.resources, dict(found)
    quiet = bool(problems) and not problems[0].target.on_host
    if not (quiet and settings.batch and resources.budget.limited and resources.complete) or tuner.frozen:
        return best
    going = set(best)
    for times in range(1, 1 + settings.deeper):
        worst = [n for n in losing(problems, best, apart) if n in going]
        if not worst or resources.budget.over(share):
            break
        chosen = tuner.run([problems[n] for n in worst], settings.deepened(times), share, again=True)
        better = {n: c for n, c in zip(worst, chosen, strict=True) if _seconds(c) < _seconds(best[n])}
        best |= better
        if not better:
            break
        going = set(better) if apart else going
    resources.expired = False
    return best


def losing(problems: Sequence[Problem], found: Mapping[int, TunedChoice], apart: bool = False) -> list[int]:
    """Return the places of measured kernels that lose a good part of the whole time against their floors, those first
    that lose most; of its own time where each stands `apart`.
    """
    taken = {n: problem.uses * (found[n].seconds or 0.0) for n, problem in enumerate(problems)}
    lost = {n: taken[n] - p.uses * Roofline(p.target).cost(p.form) for n, p in enumerate(problems)}
    whole = sum(taken.values())
    return sorted((n for n in lost if lost[n] > LOSING * (taken[n] if apart else whole)), key=lambda n: -lost[n])


def _estimate_name(problem: Problem, settings: Settings) -> str:
    """Return what a database calls an estimate: those of longer searches are kept apart, as they are compared with each
    other alone.
    """
    return f"estimate of {settings.most} {problem.key}" if settings.most > QUICK.most else f"estimate {problem.key}"


def _seconds(choice: TunedChoice) -> float:
    return inf if choice.seconds is None else choice.seconds
