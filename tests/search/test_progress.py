"""The progress of a search fits a terminal and ends erased."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from cuts.search.analysis.progress import Monitor, fitting
from rich.console import Console

WORDS = ("12/33 kernels", "about 130 s left", "best 12.113 ms", "at first 25.200 ms", "2113 trials")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize(("width", "count"), [(60, 2), (80, 3), (120, 5)])
def test_a_frame_is_one_complete_line(width: int, count: int) -> None:
    written = StringIO()
    monitor = Monitor(lambda line: None, Console(file=written, width=width, force_terminal=True))
    monitor.show(0.4, WORDS)
    monitor.close()
    frames = [line for line in re.split(r"[\r\n]+", ESCAPE.sub("", written.getvalue())) if line.strip()]
    assert frames and all(len(frame) <= width for frame in frames)
    assert re.fullmatch(r"tuning [╸━╺ ]+ " + re.escape(", ".join(WORDS[:count])) + r" +\d:\d\d:\d\d *", frames[-1])
    assert frames[-1].count("━") >= 8


def test_the_last_frame_is_erased() -> None:
    written = StringIO()
    monitor = Monitor(lambda line: None, Console(file=written, width=80, force_terminal=True))
    monitor.show(0.4, WORDS)
    monitor.close()
    shown = written.getvalue()
    assert shown.rindex("\x1b[2K") > shown.rindex("tuning")
    assert ESCAPE.sub("", shown[shown.rindex("tuning") :]).count("\n") <= 1


def test_words_that_do_not_fit_are_left_out() -> None:
    assert fitting(WORDS, 12) == ""
    assert fitting(WORDS, 13) == "12/33 kernels"
    assert fitting(WORDS, 200) == ", ".join(WORDS)


def test_without_a_terminal_there_are_lines() -> None:
    lines: list[str] = []
    Monitor(lines.append).show(0.5, WORDS)
    assert lines == ["tuning: " + ", ".join(WORDS)]
