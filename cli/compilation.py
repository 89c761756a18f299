"""Work of `cuts compile` and `cuts tune`: compile, write, report."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from ..backends import Array, Timing, find_target
from ..compile import CompiledPlan, Spec, build_graph, compile_model, compile_unmeasured, load_spec, tune_graph
from ..compile.dynamic import ModelFamily, build_dynamic
from ..ir import Budget, CompileOptions, Graph, Pruning, Target, UsageError
from ..numerics import Comparison
from ..search import Monitor, Settings, TuningSession, make_monitor, summary_lines, summary_values, tuning_session
from .learning import learned_order
from .models import chosen_target, compile_parts, load_graph, weight_costs
from .options import refuse, set_defaults
from .output import (
    AnyPlan,
    CompileProgress,
    compare_plan,
    console,
    own_onnx,
    plan_values,
    read_inputs,
    require_right_plan,
    time_table,
    write_page,
    write_text,
    write_trace,
)

_BUDGET, _INTERRUPT_EXIT = 6, 130
#: Options that say how to search.
SEARCH_OPTIONS = ("strategy", "unaided", "trials", "pruning")


def run_tuned(arguments: Namespace) -> int:
    """Time candidates of every kernel and write the plan of the fastest.

    Raises `UsageError` for the target `reference`, which has no kernels.
    """
    lesson = learned_order(arguments)
    if lesson is not None and arguments.model is None and arguments.op is None:
        return 0
    _check(arguments)
    budget = Budget.since(arguments.entered, arguments.budget)
    target = chosen_target(arguments)
    if target.dialect == "reference":
        raise UsageError("target 'reference' has no kernels to tune", hint="use --target opencl or cuda")
    anew = _searches_anew(arguments)
    settings = Settings(
        strategy=getattr(arguments, "strategy", None) or Settings().strategy,
        aided=not getattr(arguments, "unaided", False),
        most=getattr(arguments, "trials", None) or Settings().most,
        seed=arguments.seed,
        libraries=not (arguments.no_libraries or target.invariant),
        pruning=_pruning(arguments),
        correction=lesson.correction if lesson is not None else None,
        recalls=lesson is None or lesson.recalls,
    )
    monitor = make_monitor(arguments.quiet)
    with tuning_session(
        target,
        budget=budget,
        frozen=arguments.frozen,
        settings=settings,
        workers=getattr(arguments, "workers", None),
        evaluate=arguments.mode == "mixed",
        audit=getattr(arguments, "audit", None) or 0,
        replay=Path(arguments.replay) if getattr(arguments, "replay", None) else None,
        further=getattr(arguments, "further", False) or anew,
        anew=anew,
        devices=_devices(getattr(arguments, "devices", None)),
        scheduler=getattr(arguments, "scheduler", None) or "",
        monitor=monitor,
        notice=console.note,
    ) as session:
        return run_compile(arguments, session, monitor)


def _searches_anew(arguments: Namespace) -> bool:
    """Return whether an option says how to search, so that earlier results are no answer.

    Raises `UsageError` for such an option beside --frozen.
    """
    options = [name for name in SEARCH_OPTIONS if hasattr(arguments, name)]
    if arguments.frozen:
        refuse(arguments, options, "with --frozen nothing is searched")
    return any(getattr(arguments, name) for name in options)


def _devices(text: str | None) -> tuple[str, ...]:
    """Return the numbers in a list of devices.

    Raises `UsageError` where one is no number or is repeated.
    """
    found = tuple(part.strip() for part in text.split(",")) if text else ()
    if any(not part.isdigit() for part in found) or len(set(found)) < len(found):
        raise UsageError(f"--devices {text}: expected different numbers of devices", hint="--devices 0,1 for example")
    return found


def run_compile(arguments: Namespace, session: TuningSession | None = None, monitor: Monitor | None = None) -> int:
    """Compile a model, check and time it, write and report the plan.

    The `monitor` of a search ends before results are printed.
    """
    start = time.perf_counter()
    budget = Budget.since(arguments.entered, arguments.budget) if session is None else session.budget
    if session is None:
        _check(arguments)
    spec = load_spec(arguments.spec)
    target = chosen_target(arguments)
    with budget.stage("import"):
        graph = load_graph(arguments, spec)
    _check_inputs(arguments, graph)
    loaded = time.perf_counter()
    folder = arguments.output or _default_output(arguments.model or arguments.op)
    progress, stopped = CompileProgress(), list[str]()
    with progress.show() if session is None else nullcontext():  # a search shows its own
        plan = _compile(arguments, graph, spec, target, session, _options(arguments, progress, stopped, budget))
    if monitor is not None:
        monitor.close()
    if plan is None or arguments.stop_after:
        _show_stopped(arguments, stopped)
        return 0
    seconds = {"load": loaded - start, "compile": time.perf_counter() - loaded}
    inputs = read_inputs(plan, arguments) if arguments.verify or arguments.time else {}
    results, oracle = _compile_checks(arguments, plan, inputs)
    costs = weight_costs(arguments, plan, inputs) if arguments.verify else {}
    times = _times(arguments, plan, inputs)
    with budget.stage("save"):
        plan.save(folder)
    _note_compiler(plan)
    _note_libraries(plan)
    _dump_kernels(arguments.dump, plan)
    if arguments.report:
        write_page(arguments.report, plan, arguments.given, results, times, session, budget)
    if arguments.trace:
        write_trace(arguments.trace, session, budget)
    _show_compiled(arguments, plan, folder, seconds, results, oracle, costs, times, session, budget)
    if arguments.verbose:
        console.note_table(time_table(budget, session))
    if session is not None and session.tuner.executor.interrupted:
        console.note("cuts: interrupted; the plan is the best found so far")
        return _INTERRUPT_EXIT
    if not plan.complete:
        console.note(f"cuts: the budget of {arguments.budget:g} s ended the search; the plan is the best found so far")
        return _BUDGET
    return 0


def _check(arguments: Namespace) -> None:
    """Fill in defaults; refuse options that cannot apply to this compilation."""
    if (arguments.model is None) == (arguments.op is None):
        raise UsageError("expected a MODEL, or an operation (--op NAME)", hint="see 'cuts compile --help'")
    set_defaults(arguments)
    if arguments.op is None:
        refuse(arguments, ["attr"], "attributes are those of the operation that --op names")
    else:
        refuse(arguments, ["strict", "weights"], "--op names an operation of the vocabulary")
    if arguments.stop_after:
        refuse(arguments, ["output", "verify", "time", "report"], "--stop-after ends before there is a plan")
    if find_target(arguments.target).dialect == "reference":
        refuse(arguments, ["time"], "target 'reference' has no kernels to time")


def _check_inputs(arguments: Namespace, graph: Graph | ModelFamily | None) -> None:
    """Refuse unused inputs; without a graph the model is run to find the shapes of its parts."""
    if graph is not None and not (arguments.verify or arguments.time):
        refuse(arguments, ["input"], "nothing is run without --verify or --time")


def _show_stopped(arguments: Namespace, texts: Sequence[str]) -> None:
    """Print the program after the last pass: of each part, where the model is compiled in parts."""
    if arguments.json:
        console.print_json({"stopped_after": arguments.stop_after, "programs": texts})
    else:
        print("\n".join(texts))


def _times(arguments: Namespace, plan: AnyPlan, inputs: Mapping[str, Array]) -> list[tuple[Timing, ...]]:
    """Time each group of each part on random inputs; zeros would be faster."""
    if not arguments.time or plan.target.dialect == "reference":
        return [() for _ in plan.parts]
    plan.run(inputs)
    return [part.session.time_steps() for part in plan.parts]


def _default_output(model: str) -> str:
    return "model.plan" if model == "-" else f"{Path(model).stem}.plan"


def _compile(
    arguments: Namespace,
    graph: Graph | ModelFamily | None,
    spec: Spec,
    target: Target,
    session: TuningSession | None,
    options: CompileOptions,
) -> AnyPlan | None:
    """Run the passes; None when they stop before there is a plan. Without a graph the model is compiled in parts."""
    if isinstance(graph, Graph):
        return _compile_graph(graph, spec, target, options, session)

    def compile_part(part: Graph) -> CompiledPlan:
        found = _compile_graph(part, spec, target, options, session)
        return found or build_graph(part, spec, find_target("reference"), CompileOptions())

    if graph is not None:
        return build_dynamic(graph, spec, target, compile_part, dict(arguments.buckets))
    return compile_parts(arguments, spec, target, compile_part)


def _options(arguments: Namespace, progress: CompileProgress, stopped: list[str], budget: Budget) -> CompileOptions:
    """Return the options; the program after the last pass is added to `stopped` where one is named."""
    dump = Path(arguments.dump) if arguments.dump else None
    number = 0

    def show(name: str, text: str) -> None:
        nonlocal number
        if dump is not None:
            write_text(dump / f"{number:02}-{name}.txt", text)
            number += 1
        if name == arguments.stop_after:
            stopped.append(text)
        elif name in arguments.print_after or "all" in arguments.print_after:
            console.note(f"; after {name}\n{text}")

    return CompileOptions(
        arguments.mode,
        arguments.budget,
        tuple(arguments.print_after),
        arguments.stop_after,
        dump,
        show,
        arguments.debug,
        progress.report_pass,
        precision=arguments.precision,
        begun=budget,
        memory=arguments.memory,
        pruning=_pruning(arguments),
    )


def _pruning(arguments: Namespace) -> Pruning:
    """Return the pruning rule.

    Raises `UsageError` for a top share beside a rule that keeps none.
    """
    usual = Pruning()
    found = Pruning(arguments.pruning or usual.rule, arguments.top or usual.top)
    if not found.ranks:
        refuse(arguments, ["top"], "it is the share of points that --pruning pul keeps")
    return found


def _compile_graph(
    graph: Graph, spec: Spec, target: Target, options: CompileOptions, session: TuningSession | None
) -> CompiledPlan | None:
    if options.stop_after:
        compile_model(graph, spec, target, options, compile_unmeasured if session is None else session.compile)
        return None
    if session is None:
        return build_graph(graph, spec, target, options)
    return tune_graph(graph, spec, target, options, session)


def _dump_kernels(dump: str | None, plan: AnyPlan) -> None:
    if dump is None:
        return
    for number, kernel in enumerate(kernel for part in plan.parts for kernel in part.kernels):
        name = f"{number:04}-{kernel.name}{kernel.source_suffix}"
        write_text(Path(dump) / "kernels" / name, kernel.source)


def _compile_checks(
    arguments: Namespace, plan: AnyPlan, inputs: Mapping[str, Array]
) -> tuple[tuple[Comparison, ...], str]:
    if not arguments.verify:
        return (), ""
    own = None if arguments.weights else own_onnx(arguments.model or "", plan)
    results, oracle = compare_plan(plan, inputs, own)
    require_right_plan(plan, inputs, results, oracle)
    return results, oracle


def _note_compiler(plan: AnyPlan) -> None:
    """Print the compiler's warnings, and the kernels that spill registers."""
    made = [pair for part in plan.parts for pair in zip(part.kernels, part.cubins, strict=False)]
    for warning in dict.fromkeys(line for part in plan.parts for cubin in part.cubins for line in cubin.warnings):
        console.note(f"compiler: {warning}")
    spilling = [(kernel.name, cubin.spill_bytes) for kernel, cubin in made if cubin.spill_bytes]
    if spilling:
        listed = ", ".join(f"{name} ({nbytes} B)" for name, nbytes in spilling)
        console.note(f"{console.count(len(spilling), 'kernel')} with registers spilled to memory: {listed}")


def _note_libraries(plan: AnyPlan) -> None:
    """Print the libraries that the plan calls: it may be for another machine."""
    called = [str(group["library"]) for part in plan.parts for group in part.plan.groups if "library" in group]
    if called:
        names = ", ".join(sorted(set(called)))
        calls = f"the plan has {console.count(len(called), 'call')} of {names}"
        console.note(f"{calls}; where they are missing generated kernels run; --no-libraries leaves them out")


def _show_compiled(
    arguments: Namespace,
    plan: AnyPlan,
    folder: str,
    seconds: Mapping[str, float],
    results: tuple[Comparison, ...],
    oracle: str,
    costs: Mapping[str, float],
    times: Sequence[tuple[Timing, ...]],
    session: TuningSession | None,
    budget: Budget,
) -> None:
    if arguments.json:
        value: dict[str, object] = {
            "plan": folder,
            "seconds": seconds,
            "stages": budget.spent,
            "complete": plan.complete,
        } | plan_values(plan)
        if session is not None:
            value["tuning"] = summary_values(session)
        if results:
            value["verify"] = console.comparison_values(results, oracle)
            value |= console.weight_values(arguments.weights, costs)
        if any(times):
            value["times"] = [t.median for timings in times for t in timings]
        console.print_json(value)
        return
    screen = console.output_console()
    for part, timings in zip(plan.parts, times, strict=True):
        screen.print(console.group_table(part.plan, part.cubins, timings))
        screen.print(console.totals(part.plan), markup=False)
    if results:
        screen.print(console.comparison_table(results, oracle))
    if costs:
        screen.print(console.weight_table(arguments.weights, costs))
    for line in summary_lines(session) if session is not None else ():
        screen.print(line, markup=False)
    took = ", ".join(f"{name} {console.seconds(value)}" for name, value in seconds.items())
    screen.print(f"plan {folder} written ({took})", markup=False)
    if plan.target.dialect == "cuda" and not any(part.cubins for part in plan.parts):
        console.note(
            "sources only: no CUDA compiler was found (nvcc or NVRTC); the plan compiles its kernels when it is run"
        )
