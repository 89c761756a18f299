"""Fork server: workers that are copies of one process.

They answer, end and are replaced as those that are programs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuts.ir.errors import BackendError
from cuts.search import build
from cuts.search.build import Done, Job, Workers
from cuts.search.child import Child, Lost
from cuts.search.copies import Nursery

pytestmark = pytest.mark.skipif(not Nursery.possible(), reason="processes are copied on Linux only")

SERVICES = "cuts.tests.search.services"


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery(SERVICES)
    yield made
    made.close()


def child(nursery: Nursery, service: str = "Slow") -> Child:
    return Child(f"{SERVICES}:{service}", nursery=nursery)


def test_forks_are_processes_with_the_servers_imports(nursery: Nursery) -> None:
    children = [child(nursery) for _ in range(3)]
    found = [each.call(60.0, "imported") for each in children]
    assert len({process for process, _ in found}) == 3
    assert all(parent == nursery._process.pid for _, parent in found if nursery._process is not None)
    for each in children:
        each.close()


def test_ended_fork_reports_its_status_and_is_replaced(nursery: Nursery) -> None:
    mine, other = child(nursery), child(nursery)
    with pytest.raises(Lost, match="exit code 3"):
        mine.call(60.0, "crash")
    with pytest.raises(Lost, match="signal SIGSEGV"):
        mine.call(60.0, "fault")
    assert (mine.call(60.0, "nap", 0.0), mine.starts) == (0.0, 3)
    assert (other.call(60.0, "nap", 0.0), other.starts) == (0.0, 1)
    mine.close()
    other.close()


def test_a_copy_that_hangs_is_ended(nursery: Nursery) -> None:
    hung = child(nursery)
    process, _ = hung.call(60.0, "imported")
    with pytest.raises(Lost, match=r"no answer in 0\.1 seconds"):
        hung.call(0.1, "nap", 300.0)
    assert not runs(process)


def test_unstarted_fork_can_be_ended() -> None:
    nursery = Nursery(SERVICES)
    unborn = child(nursery)
    unborn.start()
    begun = time.monotonic()
    unborn.kill()
    assert time.monotonic() - begun < 1.0
    assert unborn.call(60.0, "nap", 0.0) == 0.0, "it is a program of its own then"
    unborn.close()


def test_lost_server_leaves_children_and_falls_back(nursery: Nursery) -> None:
    before, after = child(nursery), child(nursery)
    assert before.call(60.0, "nap", 0.0) == 0.0
    assert nursery._process is not None
    nursery._process.kill()
    nursery._process.wait()
    assert after.call(60.0, "nap", 0.0) == 0.0
    assert before.call(60.0, "nap", 0.0) == 0.0
    before.close()
    after.close()


def test_unimportable_module_is_the_answer() -> None:
    nursery = Nursery("cuts.search.nowhere")
    lost = Child("cuts.search.nowhere:Nothing", nursery=nursery)
    with pytest.raises(BackendError, match="nowhere"):
        lost.call(60.0, "nap", 0.0)
    lost.close()
    nursery.close()


def test_nothing_is_left_of_workers_that_were_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MANY", 2)
    workers = Workers(3, f"{SERVICES}:Slow")
    found = answers(workers, [Job(n, "imported", ()) for n in range(3)])
    processes = {number for each in found for number in each.value}
    workers.submit(Job("under way", "nap", (300.0,)))
    workers.close()
    assert len(processes) >= 2
    assert not [process for process in processes if runs(process)]


def test_copies_leave_the_keyboard_to_whoever_asked(nursery: Nursery, capfd: pytest.CaptureFixture[str]) -> None:
    mine = child(nursery)
    process, parent = mine.call(60.0, "imported")
    for each in (process, parent):
        assert os.getpgid(each) != os.getpgid(0)
        os.kill(each, signal.SIGINT)
    assert mine.call(60.0, "nap", 0.0) == 0.0
    mine.close()
    assert capfd.readouterr().err == ""


def answers(workers: Workers, jobs: list[Job]) -> list[Done]:
    for job in jobs:
        workers.submit(job)
    found: list[Done] = []
    while workers.load:
        found += workers.collect(1.0)
    return found


def runs(process: int) -> bool:
    """Return true for a running process.

    One that has ended and whose status is not collected does not run.
    """
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
