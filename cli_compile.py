"""`cuts compile`."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from . import console
from .backends.device import Array, Timing
from .backends.targets import find_target
from .cli_common import compare_plan, plan_values, read_inputs, require_right_plan, write_text
from .driver import CompiledPlan, Spec, compile_model, load_model, load_spec, plan_of
from .ir.compiled import CompileOptions
from .ir.graph import Graph
from .ir.target import Target
from .runtime.onnx_oracle import has_onnxruntime
from .runtime.report import html_report
from .runtime.verify import Comparison
from .search.selector import MeasuredSelector
from .search.summary import summary_lines, summary_values

_BUDGET, _INTERRUPTED = 6, 130


def compile_command(arguments: Namespace) -> int:
    """Compile a model by the model of the machine, or by measured times where that is asked for."""
    if arguments.tune or arguments.frozen:
        from .cli_tune import tune_command

        return tune_command(arguments)
    return run_compile(arguments)


def run_compile(arguments: Namespace, selector: MeasuredSelector | None = None) -> int:
    """Compile a model, check and time it where asked, write the plan, and say what was done."""
    start = time.perf_counter()
    spec = load_spec(arguments.spec)
    target = find_target(arguments.target)
    graph = load_model(arguments.model, spec, dict(arguments.shape))
    loaded = time.perf_counter()
    folder = arguments.output or _default_output(arguments.model)
    plan = _compile(arguments, graph, spec, target, selector)
    if plan is None:
        return 0
    seconds = {"load": loaded - start, "compile": time.perf_counter() - loaded}
    inputs = read_inputs(plan, arguments) if arguments.verify or arguments.time else {}
    results, oracle = _compile_checks(arguments, plan, inputs)
    times = _times(arguments, plan, inputs)
    plan.save(folder)
    _note_compiler(plan)
    _dump_kernels(arguments.dump, plan)
    if arguments.report:
        _write_report(arguments.report, plan, results, times)
    _show_compiled(arguments, plan, folder, seconds, results, oracle, times, selector)
    if selector is not None and selector.tuner.interrupted:
        console.note("cuts: interrupted; the plan is the best found so far")
        return _INTERRUPTED
    if not plan.complete:
        console.note(f"cuts: the budget of {arguments.budget:g} s ended the search; the plan is the best found so far")
        return _BUDGET
    return 0


def _times(arguments: Namespace, plan: CompiledPlan, inputs: Mapping[str, Array]) -> tuple[Timing, ...]:
    """Time each group on real numbers; zeros would flatter it."""
    if not arguments.time or plan.target.dialect == "reference":
        return ()
    plan.run(inputs)
    return plan.session.time_steps()


def _default_output(model: str) -> str:
    return "model.plan" if model == "-" else f"{Path(model).stem}.plan"


def _compile(arguments: Namespace, graph: Graph, spec: Spec, target: Target, selector: MeasuredSelector | None) -> CompiledPlan | None:
    """Run the passes; None when they were told to stop before there is a plan."""
    dump = Path(arguments.dump) if arguments.dump else None
    number = 0

    def show(name: str, text: str) -> None:
        nonlocal number
        if dump is not None:
            write_text(dump / f"{number:02}-{name}.txt", text)
            number += 1
        if name == arguments.stop_after:
            print(text)
        elif name in arguments.print_after or "all" in arguments.print_after:
            console.note(f"; after {name}\n{text}")

    options = CompileOptions(arguments.mode, arguments.budget, tuple(arguments.print_after), arguments.stop_after, dump, show)
    if selector is not None and not arguments.stop_after:
        from .plan_cache import tuned_plan

        return tuned_plan(graph, spec, target, options, selector)
    compiled = compile_model(graph, spec, target, options, selector)
    return None if arguments.stop_after else plan_of(compiled, graph, spec, target)


def _dump_kernels(dump: str | None, plan: CompiledPlan) -> None:
    if dump is None:
        return
    for number, kernel in enumerate(plan.kernels):
        suffix = "cu" if kernel.dialect == "cuda" else "cl"
        write_text(Path(dump) / "kernels" / f"{number:04}-{kernel.name}.{suffix}", kernel.source)


def _compile_checks(arguments: Namespace, plan: CompiledPlan, inputs: Mapping[str, Array]) -> tuple[tuple[Comparison, ...], str]:
    if not arguments.verify:
        return (), ""
    onnx = arguments.model if arguments.model.lower().endswith(".onnx") and has_onnxruntime() else None
    results, oracle = compare_plan(plan, inputs, onnx)
    require_right_plan(plan, inputs, results, oracle)
    return results, oracle


def _note_compiler(plan: CompiledPlan) -> None:
    """Say what the compiler warned of, and which kernels spill registers."""
    for warning in dict.fromkeys(line for cubin in plan.cubins for line in cubin.warnings):
        console.note(f"compiler: {warning}")
    spilling = [(kernel.name, cubin.spill_bytes) for kernel, cubin in zip(plan.kernels, plan.cubins, strict=False) if cubin.spill_bytes]
    if spilling:
        listed = ", ".join(f"{name} ({nbytes} B)" for name, nbytes in spilling)
        console.note(f"{console.count(len(spilling), 'kernel')} with registers spilled to memory: {listed}")


def _write_report(path: str, plan: CompiledPlan, results: tuple[Comparison, ...], times: tuple[Timing, ...]) -> None:

    write_text(Path(path), html_report(plan.plan, results, times, {number: cubin.report for number, cubin in enumerate(plan.cubins)}))


def _show_compiled(
    arguments: Namespace,
    plan: CompiledPlan,
    folder: str,
    seconds: Mapping[str, float],
    results: tuple[Comparison, ...],
    oracle: str,
    times: tuple[Timing, ...],
    selector: MeasuredSelector | None,
) -> None:
    if arguments.json:
        value: dict[str, object] = {"plan": folder, "seconds": seconds, "complete": plan.complete} | plan_values(plan)
        if selector is not None:
            value["tuning"] = summary_values(selector)
        if results:
            value["verify"] = console.comparison_values(results, oracle)
        if times:
            value["times"] = [t.median for t in times]
        console.print_json(value)
        return
    screen = console.out()
    screen.print(console.group_table(plan.plan, plan.cubins, times))
    if results:
        screen.print(console.comparison_table(results, oracle))
    screen.print(console.totals(plan.plan), markup=False)
    for line in summary_lines(selector) if selector is not None else ():
        screen.print(line, markup=False)
    took = ", ".join(f"{name} {console.seconds(value)}" for name, value in seconds.items())
    screen.print(f"plan {folder} written ({took})", markup=False)
    if plan.target.dialect == "cuda" and not plan.cubins:
        console.note("sources only: no CUDA compiler was found (nvcc or NVRTC); the plan compiles its kernels when it is run")
