"""Wall time of calls through `torch.compile(model, backend="cuts")` and other ways.

    python -m cuts.bench door --out FOLDER [--only resnet-50:1 encoder:1] [--ways eager default cuts] [--budget 20]

Networks are those of `bench/networks` (`resnet-50`, `bert-base`, ...) and of its `policies`. A row has the milliseconds
of a call among calls that follow one another and of a synchronised call; for `cuts` also the time of the plan on the
GPU, the time until a call returns, and the overhead over the plan. `nothing` is a backend that computes nothing: the
overhead of Dynamo. Strict fp32, inputs on the GPU, no gradients. Rows go to `FOLDER/door.json`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from attrs import asdict, evolve, frozen
from cuts.bench.networks.models import BY_NAME
from cuts.bench.networks.peer_calls import round_time
from cuts.bench.networks.policies import NETWORKS, network
from cuts.bench.tools.records import circumstances, write_rows
from cuts.compile.external_buffers import InPlaceProgram
from cuts.compile.torch_backend import cuts_backend
from cuts.ir import CutsError

ROUNDS, CALLS = 7, 50
WAYS = ("eager", "nothing", "default", "reduce", "cuts", "frozen")


@frozen
class CallRow:
    """Row of one network called in one way.

    Times are milliseconds, `compiling` seconds; `error` is the greatest one of an output, relative to the largest that
    eager PyTorch computes.
    """

    network: str
    batch: int
    way: str
    wall: float
    waited: float
    returned: float
    compiling: float
    error: float
    plan: float | None = None
    launches: int | None = None

    @property
    def above(self) -> float | None:
        """Milliseconds of a call beyond its plan's, for consecutive calls."""
        return None if self.plan is None else self.wall - self.plan


class Watch:
    """Sessions that were opened, with the arguments of their last launch."""

    def __init__(self) -> None:
        self.sessions: list[Any] = []
        self.last: dict[int, tuple[Any, ...]] = {}

    def __enter__(self) -> Watch:
        self._open = open_ = InPlaceProgram.open

        def open_and_keep(program: Any, *arguments: Any) -> Any:
            session: Any = open_(program, *arguments)
            launch = session.launch

            def record_call(*arguments: Any) -> None:
                self.last[id(session)] = arguments
                launch(*arguments)

            session.launch = record_call
            session.repeat = lambda: launch(*self.last[id(session)])
            self.sessions.append(session)
            return session

        program: Any = InPlaceProgram
        program.open = open_and_keep
        return self

    def __exit__(self, *_: object) -> None:
        program: Any = InPlaceProgram
        program.open = self._open

    def quiet(self) -> None:
        """Let sessions launch unseen, as they do elsewhere."""
        for session in self.sessions:
            del session.launch

    def repeat(self) -> None:
        """Launch the last call's kernels again, over the same memory."""
        for session in self.sessions:
            session.repeat()


def walls(torch: Any, call: Callable[[], Any]) -> tuple[float, float, float]:
    """Return a call's milliseconds: among others, synchronous, and until it returns."""
    following, waited, returned = [], [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        following.append((perf_counter() - start) / CALLS)
        for _ in range(CALLS):
            start = perf_counter()
            call()
            returned.append(perf_counter() - start)
            torch.cuda.synchronize()
            waited.append(perf_counter() - start)
    return tuple(statistics.median(samples) * 1e3 for samples in (following, waited, returned))  # type: ignore[return-value]


def on_device(torch: Any, run: Callable[[], None]) -> float:
    """Return GPU milliseconds of repeated launches."""
    return statistics.median(round_time(torch, run, CALLS) for _ in range(ROUNDS))


def nothing(module: Any, examples: Any) -> Any:
    """Compile to a function that returns the same tensors at each call."""
    torch = import_module("torch")
    output = next(node for node in module.graph.nodes if node.op == "output").args[0]
    found = tuple(torch.empty(node.meta["example_value"].shape, device="cuda") for node in output)
    return lambda *_: found


def caller(torch: Any, model: Any, way: str, budget: float | None) -> Any:
    """Return a model as it is called in a way."""
    torch._dynamo.reset()
    tuned = {} if budget is None else {"budget": budget}
    made: dict[str, Callable[[], Any]] = {
        "eager": lambda: model,
        "nothing": lambda: torch.compile(model, backend=nothing),
        "default": lambda: torch.compile(model),
        "reduce": lambda: torch.compile(model, mode="reduce-overhead"),
        "cuts": lambda: torch.compile(model, backend=cuts_backend, options=tuned),
        "frozen": lambda: torch.compile(model, backend=cuts_backend, options={**tuned, "freeze": True}),
    }
    return made[way]()


@lru_cache(maxsize=1)
def on_gpu(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return a network and its inputs on the GPU."""
    torch = import_module("torch")
    model, inputs = BY_NAME[name].make(batch, False) if name in BY_NAME else network(name, batch, torch)
    return model.to("cuda"), tuple(each.to("cuda") for each in inputs)


def measure(torch: Any, name: str, batch: int, way: str, budget: float | None) -> CallRow:
    """Compile a network and time its calls."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model, given = on_gpu(name, batch)
    with torch.no_grad(), Watch() as watch:
        expected = model(*given)
        start = perf_counter()
        call = caller(torch, model, way, budget)
        found = call(*given).clone()
        for _ in range(5):
            kept = call(*given)  # the repeated launch writes to it
        torch.cuda.synchronize()
        compiling = perf_counter() - start
        error = float((found - expected).abs().max() / expected.abs().max())
        watch.quiet()
        row = CallRow(name, batch, way, *walls(torch, lambda: call(*given)), compiling, error)
        if not watch.sessions:
            return row
        steps = sum(session.plan.launch_count for session in watch.sessions)
        row = evolve(row, plan=on_device(torch, watch.repeat), launches=steps)
        assert kept.shape == expected.shape
        return row


def table(rows: list[CallRow]) -> str:
    """Return rows as text."""
    head = f"{'network':<13}{'batch':>6} {'way':<9}{'wall ms':>9}{'waited':>9}{'returned':>9}{'plan':>9}{'above':>9}"
    lines = [head + f"{'launches':>9}{'error':>10}{'compile s':>10}"]
    for r in rows:
        ours = "" if r.plan is None or r.above is None else f"{r.plan:>9.3f}{r.above:>9.3f}{r.launches:>9}"
        lines.append(
            f"{r.network:<13}{r.batch:>6} {r.way:<9}{r.wall:>9.3f}{r.waited:>9.3f}{r.returned:>9.3f}{ours:>27}"
            f"{r.error:>10.1e}{r.compiling:>10.1f}"
        )
    return "\n".join(lines)


def parse_case(text: str) -> tuple[str, int]:
    """Read `network:batch`."""
    name, _, batch = text.partition(":")
    known = (*NETWORKS, *BY_NAME)
    if name not in known or not batch.isdigit():
        raise SystemExit(f"{text}: expected network:batch; networks are {', '.join(known)}")
    return name, int(batch)


def main() -> int:
    """Measure the cases asked for."""
    parser = argparse.ArgumentParser(description="wall time of calls through torch.compile")
    parser.add_argument("--only", nargs="+", default=["resnet50:1", "resnet50:16", "encoder:1"], metavar="CASE")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of tuning, for each graph")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    arguments = parser.parse_args()
    torch = import_module("torch")
    cases = [(*parse_case(text), way) for text in arguments.only for way in arguments.ways]
    rows: list[CallRow] = []
    facts = circumstances(torch.cuda.get_device_name())
    for case in cases:
        try:
            rows.append(measure(torch, *case, arguments.budget))
        except (RuntimeError, CutsError) as error:
            print(f"{':'.join(map(str, case))}: {str(error)[:400]}", file=sys.stderr)
            continue
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_rows(arguments.out / "door.json", [asdict(r) | facts for r in rows])
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))
    return 0 if len(rows) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
