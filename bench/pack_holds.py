"""What of the packs that come with the package still holds: a line for each model, made without a device.

    python -m cuts.bench.pack_holds [--target cuda:h200] [--out FILE] [MODEL ...]

Decisions are about units, and schedules about kernels that are printed in one way, so a change of the compiler may lose
some of either. A line has the groups and the shared launches that are formed as was decided, of all that were, and of
how many kernels the pack has the time (`known`), or the schedule alone because their source is another by now
(`again`), and how many it has nothing of (`new`). It needs PyTorch and torchvision, which make the models.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import field, fields, frozen
from cuts.backends import find_target
from cuts.bench.networks.models import BY_NAME, ModelWorkload
from cuts.bench.networks.systems import Case
from cuts.compile import Spec, compile_model, load_model, load_spec
from cuts.compile.known import question_about
from cuts.ir import CompileOptions, Graph, Target
from cuts.passes import Decisions, ForeignDecisionsError
from cuts.passes.decisions import Upheld
from cuts.passes.fusion import Workshop
from cuts.search import DecidedGraph, MeasuredSelector, tuning_session
from cuts.search.decisions import COMPILER

#: Where a schedule is from, as the columns call it.
COLUMNS = {"database": "known", "elsewhere": "again", "guessed": "new"}


@frozen
class Noted(Decisions):
    """Decisions that note what became of them."""

    kept: list[Upheld] = field(factory=list, eq=False)

    def keep(self, workshop: Workshop) -> Upheld:
        """Return the groups that hold."""
        self.kept.append(super().keep(workshop))
        return self.kept[-1]

    @property
    def held(self) -> Mapping[str, int]:
        """How many groups hold, and how many launches of several."""
        groups, shared = 0, 0
        for kept in self.kept[-1:]:
            groups, shared = len(kept.groups), len([*self.shared(kept)])
        several = sum(len(places) > 1 for places in self.launches)
        return {"groups": groups, "of": len(self.groups), "shared": shared, "of them": several}


def rows(models: list[str], target: Target) -> Iterator[dict[str, Any]]:
    """Yield what holds of each model that a pack has, in the batches that it has."""
    torch, spec = import_module("torch"), load_spec([])
    for model in (BY_NAME[name] for name in models):
        for batch in model.batches:
            workload = ModelWorkload(model, "inference", batch)
            graph = load_model(Case(workload, model.make(batch, False), torch, 0.0).program, spec, None, ())
            with tuning_session(target, frozen=True, guesses=True) as selector:
                database = selector.tuner.resources.database
                answer = database.answer(question_about(graph, spec, target, CompileOptions()).key)
                if answer is not None:
                    yield {"workload": workload.label, **_held(graph, spec, target, answer, selector)}


def _held(
    graph: Graph, spec: Spec, target: Target, answer: DecidedGraph, selector: MeasuredSelector
) -> Mapping[str, int]:
    """Return how much of an answer a compilation takes over, where the compiler is that of the pack."""
    results = {r.key: r for r in selector.tuner.resources.database.results()}
    machine = json.loads(results[answer.problems[0]].description)["machine"]
    selector._machine = {**selector._machine, COMPILER: machine[COMPILER]}
    decisions = answer.read()
    assert decisions is not None, "packs are sound"
    selector.decisions = noted = Noted(**{a.name: getattr(decisions, a.name) for a in fields(Decisions)})
    with suppress(ForeignDecisionsError):  # nothing holds
        compile_model(graph, spec, target, CompileOptions(stop_after="launches"), selector)
    origins = Counter(COLUMNS.get(choice.origin, choice.origin) for choice in selector.choices)
    return {**noted.held, **{name: origins[name] for name in COLUMNS.values()}}


def main() -> None:
    """Print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[*BY_NAME], help="all eight where none is given")
    parser.add_argument("--target", default="cuda:h200", help="the device that the pack was made on")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows as JSON")
    given = parser.parse_args()
    found = []
    with TemporaryDirectory() as folder:
        os.environ["CUTS_CACHE_DIR"] = folder
        for row in rows([name.lower() for name in given.models], find_target(given.target)):
            found.append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
