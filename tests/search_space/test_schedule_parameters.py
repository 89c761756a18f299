"""Files of a schedule parameter: class, values and rule, kernel, cost.

Everything between these, such as text, sizes and features, follows from the classes of schedules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import find_target
from cuts.ir import parse_ir, print_ir
from cuts.ir.schedule import ReductionSchedule, Schedule, SegmentSchedule, Staging
from cuts.passes.geometry import geometry_of
from cuts.passes.geometry.schedules import schedule_of
from cuts.passes.geometry.segment_geometry import numbers_of
from cuts.passes.schedule.selection.enumerate import columns_at
from cuts.passes.schedule.space import make_space
from cuts.search.learned.schedule_features import features_of_schedule

from .groups import matmul

ROOT = Path(__file__).parents[2]
GROUP = matmul(256, 256, 256)
#: The parameters of K loops and of staged operands whose values nothing else of a schedule determines.
FREE = [(ReductionSchedule, "stages", 2), (ReductionSchedule, "prefetch", 1), (Staging, "l1", True)]


def modules_naming(name: str) -> Iterator[str]:
    """Yield the modules of schedules that use a name."""
    rooms = ("passes/geometry", "passes/lowering", "passes/model", "passes/schedule", "search/learned", "ir/text")
    former = ROOT / "ir" / "text" / "tokens.py"  # words of texts that earlier versions wrote
    files = {p for room in rooms for p in (ROOT / room).rglob("*.py")} - {former}
    for path in [ROOT / "ir" / "schedule.py", *files]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = getattr(node, "attr", None) or getattr(node, "arg", None) or getattr(node, "value", None)
            declared = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
            if found == name or declared:
                yield path.relative_to(ROOT).as_posix()
                break


def test_the_documented_parameter_is_in_four_files() -> None:
    found = sorted(modules_naming("l1"))
    assert found == [
        "ir/schedule.py",
        "passes/lowering/k_loop/software_pipeline.py",
        "passes/model/work/fetches.py",
        "passes/schedule/staging_parameters.py",
    ]
    text = (ROOT / "docs" / "schedule_space.md").read_text(encoding="utf-8")
    section = text.partition("### Adding a schedule parameter")[2].partition("\n## ")[0]
    assert all(f"`{path}`" in section for path in found)


def schedule_with(kind: type, name: str, value: object) -> Schedule:
    """Return a product's schedule with a value of one parameter."""
    structure = next(t for t in make_space(GROUP, find_target("cuda:h200")).templates if t.segments[0].stages_any)
    values = {n: int(v[0]) for n, v in columns_at(structure, np.asarray([0])).items()}
    plain = schedule_of(GROUP, structure, values, 32)
    (part,) = plain.segments
    (loop,) = part.reductions
    if kind is Staging:
        loop = evolve(loop, staging=tuple(evolve(s, **{name: value}) for s in loop.staging))
    else:
        loop = evolve(loop, **{name: value})
    return evolve(plain, segments=(evolve(part, reductions=(loop,)),))


@pytest.mark.parametrize(("kind", "name", "value"), FREE)
def test_text_sizes_and_features_follow_from_the_class(kind: type, name: str, value: object) -> None:
    schedule, plain = schedule_with(kind, name, value), schedule_with(kind, name, numbers_of(kind)[name](0))
    assert parse_ir(print_ir(schedule), "<test>") == schedule
    (part,) = geometry_of(GROUP, schedule)
    held = part.staging if kind is Staging else part.loop
    assert getattr(held, name) == value
    one, other = (features_of_schedule(GROUP, s) for s in (schedule, plain))
    assert [key for key in one if np.any(one[key] != other[key])] == [f"0 {name}"]


def test_columns_become_parameters_of_the_schedule() -> None:
    """A column named after a field reaches the schedule."""
    structure = next(t for t in make_space(GROUP, find_target("cuda:h200")).templates if t.segments[0].stages_any)
    values = {n: int(v[0]) for n, v in columns_at(structure, np.asarray([0])).items()}
    for kind, name, value in FREE:
        (part,) = schedule_of(GROUP, structure, values | {f"s0.{name}": int(value)}, 32).segments
        found = part.reductions[0] if kind is ReductionSchedule else part.reductions[0].staging[0]
        assert getattr(found, name) == value
    assert set(numbers_of(SegmentSchedule)) >= {"reduction_threads", "row_vector", "row_cache"}
