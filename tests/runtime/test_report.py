"""Pages of reports.

Drawn figures, escaped texts, and a script that runs in a browser.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from cuts.backends import Timing
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir.compiled import CompiledGraph, CompileOptions
from cuts.ops import Registry
from cuts.passes.pipeline import compile_graph
from cuts.runtime import Plan, make_plan
from cuts.runtime.report import CandidateOutcome, Evidence, StepCurve, html_page, html_section
from cuts.runtime.report.chart import chart, ticks
from cuts.runtime.report.dependency_arcs import arcs, sources
from cuts.runtime.report.roofline import LaunchPoint, roofline
from cuts.runtime.report.timeline import TimelineBar, timeline
from hypothesis import given
from hypothesis import strategies as st

from ..fusion.build import graph, op

GPU = find_target("cuda:h200")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def compile_example() -> CompiledGraph:
    """Return a product with merged neighbours, and a softmax that stays unfused."""
    nodes = (
        op("a", "matmul", "x", "w"), op("b", "relu", "a"), op("c", "matmul", "b", "w"),
        op("d", "softmax", "c"), op("e", "add", "d", "x"),
    )  # fmt: skip
    model = graph({"x": (96, 64), "w": (64, 64)}, *nodes, out="e")
    return compile_graph(model, Registry.builtin(), GPU, CompileOptions(), emit)


def plan() -> Plan:
    return make_plan(compile_example(), GPU, name="a <plan> & its name")


def page(made: Plan) -> str:
    key = "k"
    groups = tuple({**group, "tuning": key, "measured": 1e-6 * n + 2e-6} for n, group in enumerate(made.groups))
    trials = {key: [CandidateOutcome("tile 4 <8>", "ok", 2e-6), CandidateOutcome("tile 8", "spilled", None)]}
    curve = [StepCurve("search 1", [(0.5, 3.0), (1.0, 2.0), (4.0, 1.5)])]
    evidence = Evidence(curve=curve, trials=trials, search={"timed": 3})
    section = html_section(evolve(made, groups=groups), evidence)
    return html_page(made.name, {"made": "today", "by": "cuts tune 'a b'"}, [section])


@given(st.floats(1e-6, 1e9))
def test_ticks_are_round_few_and_reach_the_end(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0.0 and found[-1] >= most * 0.999
    assert 3 <= len(found) <= 12
    assert all(isclose(b - a, found[1], rel_tol=1e-6) for a, b in pairwise(found))


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=9))
def test_curves_stay_within_their_drawing(points: list[tuple[float, float]]) -> None:
    drawn = str(chart([StepCurve("one", sorted(points))], "s", "ms"))
    corners = re.search(r'points="([^"]*)"', drawn)
    assert corners is not None
    for corner in corners[1].split():
        x, y = map(float, corner.split(","))
        assert 0 <= x <= 720 and 0 <= y <= 240


def test_arcs_lead_from_who_writes_to_who_reads() -> None:
    made = plan()
    reads = [set(made.steps[n].tensors) for n in range(len(made.steps))]
    for reader, writers in enumerate(sources(made)):
        assert all(writer < reader for writer in writers)
        assert all(reads[reader] & set(made.groups[writer]["outputs"]) for writer in writers)  # type: ignore[call-overload]
    assert [(arc.writer, arc.reader) for arc in arcs(made)] == [
        (writer, reader) for reader, writers in enumerate(sources(made)) for writer in writers
    ]
    assert any(arcs(made))


def test_unfused_neighbours_show_both_times_or_a_reason() -> None:
    merges: list[dict[str, Any]] = [m for group in compile_example().groups for m in group["merges"]]  # type: ignore[attr-defined]
    assert merges
    for merge in merges:
        if merge["together"] is None:
            assert merge["why"]
        else:  # no single merge would make the partition faster
            assert merge["together"]["seconds"] >= merge["apart"]["seconds"]


def test_merged_group_shows_times_of_its_operations() -> None:
    for group in compile_example().groups:
        several = len(group["ops"]) > 1  # type: ignore[arg-type]
        assert ("parts" in group) == several


def test_every_text_of_a_page_is_escaped() -> None:
    text = page(plan())
    assert "a &lt;plan&gt; &amp; its name" in text and "<plan>" not in text
    assert "tile 4 &lt;8&gt;" in text and "cuts tune &#39;a b&#39;" in text


def test_times_of_launches_take_the_place_of_estimates() -> None:
    made = plan()
    times = [Timing((1e-3 * (n + 1),)) for n in range(len(made.steps))]
    text = str(html_section(made, Evidence(times=times)))
    assert f"{sum(range(len(times) + 1)):.3f} ms in all (each launch was timed in this plan)" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open a page in")
def test_page_script_runs_in_a_browser(tmp_path: Path) -> None:
    """The script handles every click, filter and sort.

    Every row is pointed at and clicked, a filter typed, each table sorted both ways. Errors are left on the root.
    """
    use = """
    for (const row of document.querySelectorAll(".launch")) { row.dispatchEvent(new Event("mouseenter")); row.click(); }
    const filter = document.querySelector("input[type=search]");
    filter.value = "softmax"; filter.dispatchEvent(new Event("input"));
    for (const head of document.querySelectorAll("table.sorts th")) { head.click(); head.click(); }
    const faint = document.querySelectorAll(".launch.faint").length;
    const open = document.querySelectorAll("details[open]").length;
    document.documentElement.dataset.seen = `${faint} faint, ${open} open`;
    """
    made = plan()
    file = tmp_path / "page.html"
    file.write_text(page(made).replace("</body>", f"<script>{use}</script></body>"), encoding="utf-8")
    command = [CHROMIUM or "", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run([*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120)
    root = re.search(r"<html[^>]*>", done.stdout)
    assert root is not None, done.stderr
    assert 'data-ready="yes"' in root[0] and "data-error" not in root[0]
    others = sum("softmax" not in group["ops"] for group in made.groups)  # type: ignore[operator]
    assert f'data-seen="{others} faint, {len(made.steps)} open"' in root[0]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [500, 800, 1280])
def test_a_page_does_not_scroll_sideways(tmp_path: Path, width: int) -> None:
    file = tmp_path / "page.html"
    use = "const root = document.documentElement; root.dataset.beyond = root.scrollWidth - root.clientWidth;"
    file.write_text(page(plan()).replace("</body>", f"<script>{use}</script></body>"), encoding="utf-8")
    command = [CHROMIUM or "", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += [f"--window-size={width},900", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert 'data-beyond="0"' in done.stdout, done.stderr


def test_launches_show_their_rate_and_nothing_empty() -> None:
    made = plan()
    groups = tuple({**group, "choice": None, "parts_of": {"a": None, "b": 2}} for group in made.groups)
    times = [Timing((1e-3,)) for _ in made.steps]
    text = str(
        html_section(
            evolve(made, groups=groups),
            Evidence(times=times, work=[(2e9, 1e6), None], search={"points": 1331981178653}),
        )
    )
    assert "2000 GFLOP/s, " in text and "% of the f32 peak" in text
    assert "1,331,981,178,653" in text
    assert "None" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)


def test_a_roofline_places_launches_below_the_roof() -> None:
    intensity, share = 10.0, 0.5
    seconds = 1e9 / (share * intensity * GPU.BW_global)
    points = [LaunchPoint("<a>", 1e9, 1e9 / intensity, seconds, 2), LaunchPoint("none", 0.0, 8.0, 1e-6, 0)]
    drawn = roofline(points, GPU)
    (circle,) = re.findall(r'<circle class="mark2" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    (corners,) = re.findall(r'<polyline class="roof" points="(.*?)"', drawn)
    (x1, y1), (x2, y2), _ = ([float(n) for n in corner.split(",")] for corner in corners.split())
    roof = y1 + (y2 - y1) * (float(circle[0]) - x1) / (x2 - x1)
    assert float(circle[1]) > roof and "&lt;a&gt;: 10 operations a byte" in drawn
    assert roofline(points[1:], GPU) == "" and roofline(points, evolve(GPU, BW_global=0.0)) == ""


def test_a_timeline_is_as_long_as_its_launches() -> None:
    drawn = timeline([TimelineBar("<a>", "#a", 3e-6, 1), TimelineBar("b", "#b", 1e-6, 2)])
    boxes = re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', drawn)
    assert boxes == [("0.00", "750.00"), ("750.00", "250.00")]
    assert "&lt;a&gt;" in drawn and ">4 us</text>" in drawn
    assert timeline([TimelineBar("a", "#a", 0.0, 0)]) == ""


def test_a_page_has_a_timeline_and_a_roofline() -> None:
    made = plan()
    times = tuple(Timing((2e-6,)) for _ in made.steps)
    text = html_section(made, Evidence(times=times, work=[(2e6, 1e5)] * len(made.steps)))
    assert text.count('class="timeline"') == 1 and text.count("<circle") == len(made.steps)
    assert 'class="timeline"' in page(made) and "<circle" not in page(made)
