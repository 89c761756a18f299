"""Measured choice for the pipeline: `Evaluate` of Algorithm 1 from measured times, and the schedule of each kernel from
the tuner.

The partition is first found by the model. Every group that it asked about is then measured, all at once, so that
workers and device are busy; with the measured costs the partition is found again, until it asks about nothing new.
Costs that are not measured are the model's, scaled by what the measured ones say of it, so that both kinds can be
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf, isnan

from attrs import evolve

from ..ir import LOOK_SHARE, WHOLE, Budget, FusedGroup, KernelFunction, Schedule, Target
from ..passes import WRITING, Alike, Decisions, Fragment, Kernels, Member, Priced, Prices, Pricing, Roofline, Workload
from ..passes.fusion import GroupEvaluator, form_key, form_text
from ..passes.schedule import Candidate
from .audit import Audit, audit_choices
from .build import Job
from .decisions import DecidedGraph
from .earlier_results import ELSEWHERE, GUESSED
from .launches import bundle_members, is_faster, joint_problem
from .libraries import seconds_for_routines
from .making import LOWERED, Preparation, alone, make_kernels, making_seconds, together
from .problem import Problem, digest, machine_of
from .rounds import ranking_seconds
from .settings import CHUNK, LOOK, QUICK, Findings, Pace, Settings, TunedChoice, scale_of
from .task import SearchTask
from .tuner import Tuner, search_deeper

#: Part of the kernels of a plan that are not made yet when its groups are found.
UNMADE = 0.25
#: The least part of a measured time that the kernel itself takes.
LEAST = 0.2
#: Stages that a plan which competes with another one of the same graph runs through again, and the seconds in which the
#: two are opened and timed.
AGAIN, CONTEST = (*WRITING, "layouts", "pack", "views", "split"), 1.5


class MeasuredSelector:
    """A `Selector` that asks a tuner. `evaluate` switches measured partition search on; `audit` points of every kernel
    of what ships are timed besides, to see whether pruning lost the winner. `cached` says that the plan was found and
    nothing was searched. `decisions` are what the next compilation is told, `made` is what the last one decided,
    `apart` the seconds of its units where nothing is fused. `further` searches on where there are final decisions.
    `rivalled` says that another plan will be made of the graph too, `uncompared` of which plans that ship nothing was
    compared, and why: a sentence for each. `answer` is what is known of the graph, and kept, once it is compiled.
    """

    def __init__(
        self,
        target: Target,
        tuner: Tuner,
        settings: Settings | None = None,
        *,
        evaluate: bool = True,
        audit: int = 0,
        further: bool = False,
    ) -> None:
        self.target = target
        self.tuner = tuner
        self.settings = settings or Settings()
        self.evaluate = evaluate
        self.problems: list[Problem] = []
        self.choices: list[TunedChoice] = []
        self.audit = audit
        self.cached = False
        self.further = further
        self.decisions: Decisions | None = None
        self.made: Decisions | None = None
        self.apart = inf
        self.rivalled = False
        self.uncompared: list[str] = []
        self.answer: DecidedGraph | None = None
        self.audits: list[Audit] = []
        self._machine = machine_of(target)
        self._modelled: GroupEvaluator | None = None
        self._forms: dict[Hashable, FusedGroup] = {}
        self._costs: dict[Hashable, float] = {}
        self._measured: dict[Hashable, float] = {}
        self._answers: dict[tuple[str, ...], list[TunedChoice]] = {}
        self.scale = 1.0
        self._asked: dict[Hashable, Problem] = {}
        self._joined: dict[Hashable, Problem] = {}
        self._known_only = False
        self._quick = QUICK
        self._pace = Pace()
        self._preparation = Preparation(tuner.resources, self.settings)

    @property
    def budget(self) -> Budget:
        """The time that the compilation may take."""
        return self.tuner.resources.budget

    @property
    def borrowed(self) -> bool:
        """Whether a schedule was not timed here: it is one of another version, or the model's."""
        return any(choice.origin in (ELSEWHERE, GUESSED) for choice in self.choices)

    @property
    def seconds(self) -> float:
        """What all kernels take together: as measured, or as the model says on the same scale."""
        taken = zip(self.problems, self.choices, strict=True)
        return sum(p.uses * (self.scale * c.candidate.score if c.seconds is None else c.seconds) for p, c in taken)

    @property
    def planned(self) -> float:
        """Seconds in which nothing was searched for so far: what the passes take, however much is known."""
        return self.budget.elapsed - self.tuner.statistics.searching

    @property
    def complete(self) -> bool:
        """Whether neither the budget nor an interrupt ended a search."""
        return self.tuner.complete

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return an evaluator that answers with measured times where they are known; what measures them starts beside
        the passes in front.
        """
        self._modelled = modelled
        if self.decisions is None:
            self.tuner.begin()
        return self

    def cost(self, group: FusedGroup) -> float:
        """Return the seconds of a group: measured, or what the model says on the same scale, where it does in time."""
        key = form_key(group)
        if not group.adds_to_memory:  # a second run would give another result
            self._forms.setdefault(key, group)
        return self._measured.get(key, self.scale * self._model(key, group))

    def note(self, decisions: Decisions, apart: float) -> None:
        """Take in what was decided, and the seconds of all units by themselves."""
        self.made, self.apart = decisions, apart

    @property
    def findings(self) -> Findings:
        """What the last compilation found."""
        return Findings(tuple(self.problems), tuple(self.choices), self.made)

    @findings.setter
    def findings(self, found: Findings) -> None:
        self.problems, self.choices, self.made = list(found.problems), list(found.choices), found.made

    def plan(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of small graphs, which workers find side by side; what the model says of them is kept."""
        return self.plan_ahead(fragments)()

    def plan_ahead(self, fragments: Sequence[Fragment]) -> Callable[[], Sequence[Priced]]:
        """Have the workers find the kernels of small graphs, and return what waits for them."""
        wait = self.tuner.plan(fragments)

        def waited() -> Sequence[Priced]:
            found = wait()
            for kernels in (kernels for kernels in found if kernels is not None):
                for form, seconds in kernels.priced:
                    self._costs.setdefault(form_key(form), seconds)
                self.tuner.resources.climbed.update({form_key(form): points for form, points in kernels.points})
            return found

        return waited

    def ahead(self, workloads: Sequence[Workload]) -> None:
        """Have the kernels of a plan made ready by workers that nothing else is asked of, those first that take
        longest. Where they are searched for at several places, only their spaces are ranked.
        """
        if self.budget.limited and not self.tuner.frozen and self.evaluate:
            self._preparation.begin(self._longest_first(map(self._problem, workloads)), self.tuner.alone)

    def go_on(self, groups: Sequence[FusedGroup], spared: int = 0) -> None:
        """Have made ready what the last search tries next of kernels that a plan has; some workers are `spared`."""
        if self._prepares:
            problems = [Problem(group, {}, self.target, self._machine, "a kernel of the plan") for group in groups]
            self._preparation.further.begin(self._longest_first({p.key: p for p in problems}.values()), spared)

    @property
    def _prepares(self) -> bool:
        return self.budget.limited and self.tuner.alone and self.evaluate

    def _longest_first(self, problems: Iterable[Problem]) -> list[Problem]:
        return sorted(problems, key=lambda problem: -self._gain(problem))

    def overdue(self) -> bool:
        """Whether all but an answer is to be left out; what was made ready meanwhile is taken in."""
        self._preparation.look()
        return self.budget.overdue()

    def _problem(self, workload: Workload) -> Problem:
        """Return what a search finds a schedule for."""
        nodes = ", ".join(workload.nodes)
        return Problem(workload.form, workload.storages, self.target, self._machine, nodes, workload.uses)

    def _unready(self, forms: Iterable[FusedGroup]) -> int:
        """Return of how many groups no kernel was made yet."""
        keys = [form_key(form) for form in forms]
        return sum(key not in self._measured and not self._preparation.has_built(key) for key in keys)

    @contextmanager
    def foreseen(self, kernels: int, seconds: float) -> Iterator[None]:
        """Keep back of the budget in a block what a plan of so many kernels takes whose groups are found in so many
        seconds: workers make most of them meanwhile. Behind it, what those take that they have not made.
        """
        self.budget.needed = seconds + self._making(kernels, int(UNMADE * kernels))
        try:
            yield
        finally:
            self._keep_back(kernels, self._preparation.missing)

    def price(self, pricings: Sequence[Pricing]) -> Callable[[], Sequence[Prices | None]]:
        """Have groups priced by the workers, side by side."""
        return self.tuner.price(pricings)

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return the kernels of each row as one of several in a launch, as workers find them side by side."""
        return self.tuner.schedule_alike(rows)

    def learn(self, questions: Sequence[Sequence[FusedGroup]], share: float, plan: Kernels | None = None) -> bool:
        """Measure what was asked for since the last call, as long as there is time for it.

        Under a budget that is what decisions rest on so far, a question after the other, and nothing else: a short
        budget then ships no group that was never timed beside its parts. Without one all are measured at once.
        """
        asked = {k: g for k, g in self._forms.items() if k not in self._measured and self._costs.get(k, 0.0) < inf}
        if not asked or not self.evaluate or self._known_only:
            return False
        fresh = self._next(asked, questions)
        waiting = list(fresh.items())
        self._foresee(questions)
        while waiting and not self.tuner.resources.over(share):
            size = self._pace.size(self.budget.left(share)) if self.budget.limited else len(waiting)
            some, waiting = dict(waiting[:size]), waiting[size:]
            self._measure(some, share, None if waiting else plan)
        ratios = [self._measured[k] / self._costs[k] for k in self._measured if 0.0 < self._costs.get(k, 0.0) < inf]
        self.scale = scale_of(ratios, self.budget.limited)
        return any(k in self._measured for k in fresh)

    def _foresee(self, questions: Sequence[Sequence[FusedGroup]]) -> None:
        """Keep back what the kernels of the first question take to be made."""
        if self.budget.limited and questions:
            forms = {form_key(form): form for form in questions[0]}
            self._keep_back(len(forms), self._unready(form for k, form in forms.items() if k not in self._measured))

    def _leave_to(self, plan: Kernels, tasks: Sequence[SearchTask]) -> None:
        """Leave workers that a comparison has nothing more for to the kernels of a plan, by what is known of it."""
        ended = [task for task in tasks if task.choice is not None]
        known = {form_key(task.problem.form): task.seconds for task in ended if task.seconds < inf}
        self._measured.update({key: self._alone(seconds) for key, seconds in known.items()})
        self.go_on(plan(), spared=len(tasks) - len(ended))

    def _measure(self, fresh: Mapping[Hashable, FusedGroup], share: float, plan: Kernels | None) -> None:
        """Measure groups, all at once, as far as there is time for it."""
        problems = [Problem(group, {}, self.target, self._machine, "a possible group") for group in fresh.values()]
        start = self.budget.elapsed
        with self.tuner.resources.where_idle(partial(self._leave_to, plan) if plan and self._prepares else None):
            found = self.tuner.estimate(problems, self._quick, share)
        known = ((key, seconds) for key, seconds in zip(fresh, found, strict=True) if seconds is not None)
        self._measured.update({key: self._alone(seconds) for key, seconds in known})
        self._pace.note(self.budget.elapsed - start, sum(key in self._measured for key in fresh))

    def tell(self, group: FusedGroup, seconds: float) -> None:
        """Take in what a group was measured to take as it was chosen."""
        self._measured[form_key(group)] = self._alone(seconds)

    @property
    def together(self) -> bool:
        """Whether groups may share a launch."""
        return self.evaluate and not self._known_only

    def faster_together(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return for each launch whether it was measured to be faster than its groups by themselves; these count as the
        model has them where no clock has seen them. The model's word, which proposed a launch, counts where the budget
        left no time to measure it, as it does where nothing is measured at all; what such a launch takes to be made is
        kept back.
        """
        asked = [(self._joint(members), bundle_members(members)) for members in launches]
        kernels, new = len(self.problems), sum(choice.seconds is None for choice in self.choices)
        self._keep_back(kernels, new + len(asked))
        found = self.tuner.together(asked)
        self._keep_back(kernels, new + found.count(None))
        tie, pairs = self.settings.tie, zip(found, launches, strict=True)
        return [is_faster(seconds, members, self._alone, tie) for seconds, members in pairs]

    def _joint(self, members: Sequence[Member]) -> Problem:
        """Return what the groups of a launch compute together; it is asked for where launches are measured and made."""
        key = tuple((form_key(form), tuple(storages.items())) for form, storages, _ in members)
        if key not in self._joined:
            self._joined[key] = joint_problem(members, self.target, self._machine)
        return self._joined[key]

    def knows(self, group: FusedGroup) -> bool:
        """Whether a group was measured."""
        return form_key(group) in self._measured

    def _alone(self, seconds: float) -> float:
        """Return what a kernel takes among others: several in a row do not pay for being timed one by one."""
        return max(seconds - self.tuner.overhead(self.target), LEAST * seconds)

    def _next(
        self, asked: Mapping[Hashable, FusedGroup], questions: Sequence[Sequence[FusedGroup]]
    ) -> Mapping[Hashable, FusedGroup]:
        """Return the groups to measure now: of those that were asked for the ones of the first question, of the second,
        and so on, each what takes longest by the model first; the longest where there are no questions; all where time
        is no object.
        """
        if not self.budget.limited:
            return asked
        longest = sorted(asked, key=lambda key: -self._costs.get(key, 0.0))
        wanted = [{form_key(form) for form in question} for question in questions]
        first = dict.fromkeys(key for keys in wanted for key in longest if key in keys)
        return {key: asked[key] for key in (first if questions else longest[:CHUNK])}

    def choose(self, workloads: Mapping[Hashable, Workload], share: float = WHOLE) -> Mapping[Hashable, Candidate]:
        """Tune every kernel and return its schedule, with what reports say of the measurement. Behind the end of the
        budget the answer to a question that was asked before is what it was. What is then to be made of the kernels is
        kept back from the budget.
        """
        self._preparation.look()
        self._keep_back(len(workloads), self._unready(w.form for w in workloads.values()))
        share = 0.0 if self._known_only else share
        self.problems = list(map(self._problem, workloads.values()))
        self.budget.later = seconds_for_routines(self.problems, self.settings, self.budget)
        self._prepare(share)
        self._asked.update(zip(workloads, self.problems, strict=True))
        asked = tuple(p.key for p in self.problems)
        known = self._answers.get(asked) if self.budget.over(share) else None
        self.choices = known or self._run(share)
        self._answers[asked] = self.choices
        self._keep_back(len(workloads), sum(choice.seconds is None for choice in self.choices))
        return {
            key: evolve(c.candidate, measured=c.facts(p.key))
            for key, c, p in zip(workloads, self.choices, self.problems, strict=True)
        }

    def look_closer(self) -> None:
        """Audit the kernels of what ships, if that is asked for and there is time left."""
        if self.audit and self.tuner.complete:
            self.audits = audit_choices(self.tuner, self.problems, self.choices, self.audit, self.settings)

    def _prepare(self, share: float) -> None:
        """Leave the workers to what will be asked of them. Where there is no time left for a search they go on to rank
        spaces, for which they are waited, and to build kernels of what is then the model's choice.
        """
        if self.budget.over(share) and self._prepares and not self._known_only:
            latest = max(self.budget.latest, self.budget.elapsed + ranking_seconds(len(self.problems)))
            self._preparation.rank(self._longest_first(self.problems), latest)
        else:
            self._preparation.end()

    def _keep_back(self, kernels: int, new: int) -> None:
        """Keep back the seconds that it takes to make a plan of some kernels, of which some were never compiled."""
        rival = self.again(kernels) if self.rivalled else 0.0
        self.budget.needed = self._making(kernels, new) + rival

    def _making(self, kernels: int, new: int) -> float:
        return making_seconds(self.tuner.resources, self.target, kernels, new)

    def again(self, kernels: int) -> float:
        """Return about the seconds that a known plan of so many kernels takes to be made again, and to be held against
        the one that was found.
        """
        stages = sum(self.budget.spent.get(name, 0.0) for name in AGAIN)
        return stages + max(self._making(kernels, kernels // 2), LOWERED * kernels) + CONTEST

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """Let nothing be measured in a block: what is known counts, else the model's word."""
        self._known_only, expired = True, self.tuner.resources.expired
        try:
            yield
        finally:
            self._known_only, self.tuner.resources.expired = False, expired
            self._answers.clear()

    @contextmanager
    def deciding_again(self, points: int) -> Iterator[None]:
        """Let groups be compared in a block by searches of up to so many points, with what is left of the budget. Where
        that ends a search, the one before came to its end all the same.
        """
        measured, self._measured = self._measured, {}
        rivalled, self.rivalled, scale = self.rivalled, True, self.scale
        self._quick = evolve(QUICK, batch=self.settings.batch, most=points, patience=self.settings.patience)
        self._answers.clear()
        try:
            with self.budget.anew():
                yield
        finally:
            self._measured, self._quick, self.rivalled, self.scale = measured, QUICK, rivalled, scale
            self._answers.clear()
            self.tuner.resources.expired = False

    def make(
        self, chosen: Mapping[Hashable, Schedule], launches: Mapping[Hashable, Sequence[Member]]
    ) -> tuple[Mapping[Hashable, KernelFunction], Mapping[Hashable, KernelFunction]]:
        """Return kernels that workers made, and those of launches of several groups."""
        jobs: dict[Hashable, Job] = {
            (0, key): alone(self._asked[key], point) for key, point in chosen.items() if key in self._asked
        }
        for key, members in launches.items():
            jobs[1, key] = together(self._joint(members), bundle_members(members))
        self._preparation.end()
        made = make_kernels(self.tuner.resources, jobs, self._preparation.coming)
        return (
            {key: made[0, key] for key in chosen if (0, key) in made},
            {key: made[1, key] for key in launches if (1, key) in made},
        )

    def _run(self, share: float) -> list[TunedChoice]:
        """Tune the problems, those first that may have most to gain; what no clock has seen then is looked at once."""
        weights = [self._gain(p) for p in self.problems]
        order = sorted(range(len(weights)), key=lambda n: -weights[n])
        ordered, told = [self.problems[n] for n in order], self.decisions is not None
        found = dict(zip(order, self.tuner.run(ordered, self.settings, share, told), strict=True))
        unseen = [n for n in order if found[n].seconds is None]
        if unseen and share and self.budget.limited and not self.tuner.frozen:
            # What is built to be looked at need not be built again for the plan.
            self._keep_back(len(self.problems), len(unseen) // 2)
            if not self.budget.over(LOOK_SHARE):
                looked = self.tuner.run([self.problems[n] for n in unseen], LOOK, LOOK_SHARE)
                found |= dict(zip(unseen, looked, strict=True))
        if not told:
            found = search_deeper(self.problems, found, self.tuner, self.settings, share)
        return [found[n] for n in range(len(weights))]

    def _gain(self, problem: Problem) -> float:
        """Return the seconds of the whole program that a kernel was measured to take beyond its floor, all that the
        model says of it where no clock has seen it.
        """
        key = form_key(problem.form)
        if key not in self._measured:
            seconds = self._costs[key] if key in self._costs else self._model(key, problem.form)
            return problem.uses * (Roofline(self.target).cost(problem.form) if isnan(seconds) else seconds)
        return problem.uses * max(0.0, self._measured[key] - Roofline(self.target).cost(problem.form))

    def _model(self, key: Hashable, group: FusedGroup) -> float:
        """Return the model's cost, which the database remembers: it takes a while to compute."""
        if key not in self._costs:
            assert self._modelled is not None, "the pipeline asks for the evaluator first"
            name = digest(f"{self.target}\n{form_text(group)}")
            kept = self.tuner.resources.database.expected(name)
            found = self._modelled.cost(group) if kept is None else kept
            if isnan(found):  # nobody said in time, but may yet
                return found
            self._costs[key] = found
            if kept is None and found < inf:
                self.tuner.resources.database.keep_expected(name, found)
        return self._costs[key]
