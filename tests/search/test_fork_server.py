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
from cuts.search.building.workers import Job, JobResult, Workers
from cuts.search.processes.child import Child, ChildLost
from cuts.search.processes.fork_server import ForkServer

pytestmark = pytest.mark.skipif(not ForkServer.is_supported(), reason="processes are copied on Linux only")

SERVICES = "cuts.tests.search.services"


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer(SERVICES)
    yield made
    made.close()


def child(fork_server: ForkServer, service: str = "Slow") -> Child:
    return Child(f"{SERVICES}:{service}", fork_server=fork_server)


def test_forks_are_processes_with_the_servers_imports(fork_server: ForkServer) -> None:
    children = [child(fork_server) for _ in range(3)]
    found = [each.call(60.0, "process_ids") for each in children]
    assert len({process for process, _ in found}) == 3
    assert all(parent == fork_server._process.pid for _, parent in found if fork_server._process is not None)
    for each in children:
        each.close()


def test_ended_fork_reports_its_status_and_is_replaced(fork_server: ForkServer) -> None:
    mine, other = child(fork_server), child(fork_server)
    with pytest.raises(ChildLost, match="exit code 3"):
        mine.call(60.0, "crash")
    with pytest.raises(ChildLost, match="signal SIGSEGV"):
        mine.call(60.0, "fault")
    assert (mine.call(60.0, "nap", 0.0), mine.starts) == (0.0, 3)
    assert (other.call(60.0, "nap", 0.0), other.starts) == (0.0, 1)
    mine.close()
    other.close()


def test_a_copy_that_hangs_is_ended(fork_server: ForkServer) -> None:
    hung = child(fork_server)
    process, _ = hung.call(60.0, "process_ids")
    with pytest.raises(ChildLost, match=r"no answer in 0\.1 seconds"):
        hung.call(0.1, "nap", 300.0)
    assert not runs(process)


def test_unstarted_fork_can_be_ended() -> None:
    fork_server = ForkServer(SERVICES)
    unborn = child(fork_server)
    unborn.start()
    begun = time.monotonic()
    unborn.kill()
    assert time.monotonic() - begun < 1.0
    assert unborn.call(60.0, "nap", 0.0) == 0.0, "it is a program of its own then"
    unborn.close()


def test_lost_server_leaves_children_and_falls_back(fork_server: ForkServer) -> None:
    before, after = child(fork_server), child(fork_server)
    assert before.call(60.0, "nap", 0.0) == 0.0
    assert fork_server._process is not None
    fork_server._process.kill()
    fork_server._process.wait()
    assert after.call(60.0, "nap", 0.0) == 0.0
    assert before.call(60.0, "nap", 0.0) == 0.0
    before.close()
    after.close()


def test_unimportable_module_is_the_answer() -> None:
    fork_server = ForkServer("cuts.search.nowhere")
    lost = Child("cuts.search.nowhere:Nothing", fork_server=fork_server)
    with pytest.raises(BackendError, match="nowhere"):
        lost.call(60.0, "nap", 0.0)
    lost.close()
    fork_server.close()


def test_nothing_is_left_of_workers_that_were_closed() -> None:
    workers = Workers(3, f"{SERVICES}:Slow")
    found = answers(workers, [Job(n, "process_ids", ()) for n in range(3)])
    processes = {number for each in found for number in each.value}
    workers.submit(Job("under way", "nap", (300.0,)))
    workers.close()
    assert len(processes) >= 2
    assert not [process for process in processes if runs(process)]


def test_copies_leave_the_keyboard_to_whoever_asked(fork_server: ForkServer, capfd: pytest.CaptureFixture[str]) -> None:
    mine = child(fork_server)
    process, parent = mine.call(60.0, "process_ids")
    for each in (process, parent):
        assert os.getpgid(each) != os.getpgid(0)
        os.kill(each, signal.SIGINT)
    assert mine.call(60.0, "nap", 0.0) == 0.0
    mine.close()
    assert capfd.readouterr().err == ""


def answers(workers: Workers, jobs: list[Job]) -> list[JobResult]:
    for job in jobs:
        workers.submit(job)
    found: list[JobResult] = []
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
