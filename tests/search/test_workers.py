"""Workers that start late, end too early or cannot be started.

Every job has one answer, and in time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from cuts.search.building import workers as workers_module
from cuts.search.building.workers import Job, JobResult, Workers
from cuts.search.processes import child
from cuts.search.processes.child import Child, ChildLost
from cuts.search.processes.copying import ForkLoop

SERVICES = "cuts.tests.search.services"
Making = Callable[..., Workers]


@pytest.fixture
def making() -> Iterator[Making]:
    """Return a factory of workers that end with the test."""
    made: list[Workers] = []

    def make(count: int = 1, service: str = "Slow") -> Workers:
        made.append(Workers(count, f"{SERVICES}:{service}"))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def process_of(workers: Workers, number: int = 0) -> int:
    process = workers._slots[number].child._process
    assert process is not None
    while process.pid is None:  # a copy gets its number
        process.poll()
    return process.pid


def answers(workers: Workers, *jobs: Job) -> dict[str, JobResult]:
    for job in jobs:
        workers.submit(job)
    found = {done.job.owner: done for done in workers.collect(0.0)}
    while workers.load:
        found |= {done.job.owner: done for done in workers.collect(1.0)}
    return found


def test_worker_started_between_polls_is_not_hung(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first message is no answer.

    A job was lost at once, as one that "did not answer in 300 seconds".
    """
    workers = making()
    slow = workers._slots[0].child
    assert slow.connection.poll(60.0), "it has started"
    looks, ready = iter([False]), slow.ready
    monkeypatch.setattr(slow, "ready", lambda limit: next(looks, True) and ready(limit))
    done = answers(workers, Job("first", "nap", (0.3,)))["first"]
    assert (done.value, done.error) == (0.3, "")


def test_worker_that_does_not_start_is_not_awaited(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "START_LIMIT", 0.5)
    begun = time.monotonic()
    done = answers(making(1, "Unready"), Job("first", "nap", (0.0,), limit=60.0))["first"]
    assert done.lost
    assert done.error == "the process does not start"
    assert time.monotonic() - begun < 20.0


def test_a_worker_that_ends_is_noticed_at_once(making: Making) -> None:
    """Ended workers are noticed.

    Others waited for the rest of their time.
    """
    workers = making(2)
    assert answers(workers, *(Job(name, "nap", (0.0,)) for name in "ab")).keys() == {"a", "b"}
    for number in range(2):
        workers.submit(Job(f"under way {number}", "nap", (300.0,)))
        os.kill(process_of(workers, number), signal.SIGKILL)
    while any(slot.child.alive for slot in workers._slots):
        time.sleep(0.01)
    begun = time.monotonic()
    workers.collect(20.0)
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize("count", [1, 2])
def test_job_of_an_ended_worker_is_redone(making: Making, count: int) -> None:
    workers = making(count)
    assert answers(workers, Job("before", "nap", (0.0,)))["before"].value == 0.0
    workers.submit(Job("under way", "nap", (0.5,)))
    os.kill(process_of(workers), signal.SIGKILL)
    assert answers(workers)["under way"].value == 0.5
    os.kill(process_of(workers), signal.SIGKILL)
    time.sleep(0.1)
    assert answers(workers, Job("behind", "nap", (0.0,)))["behind"].value == 0.0


def test_job_that_lost_two_workers_is_lost(making: Making) -> None:
    workers = making(2)
    found = answers(workers, Job("a", "crash", ()), Job("b", "nap", (0.0,)))
    assert (found["a"].lost, found["a"].hung, found["b"].value) == (True, False, 0.0)
    assert "exit code 3" in found["a"].error
    assert sum(slot.child.starts for slot in workers._slots) <= 4


def test_dropped_job_is_not_redone(making: Making) -> None:
    workers = making()
    workers.submit(Job("under way", "crash", ()))
    workers.drop()
    assert not answers(workers)
    assert workers._slots[0].child.starts == 1


def test_early_end_of_server_falls_back_to_programs(making: Making) -> None:
    workers = making(2)
    if workers._fork_server is None:
        pytest.skip("processes are copied on Linux only")
    assert workers._fork_server._process is not None
    workers._fork_server._process.kill()
    found = answers(workers, *(Job(name, "nap", (0.0,)) for name in "abc"))
    assert [found[name].value for name in "abc"] == [0.0] * 3


def test_a_process_that_cannot_be_started_is_lost(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(ChildLost, match="too many processes"):
        Child(f"{SERVICES}:Slow").call(1.0, "nap", 0.0)
    assert "too many processes" in answers(making(), Job("a", "nap", (0.0,)))["a"].error


def test_impossible_fork_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", refuse)
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (service, there), (status, asker) = socket.socketpair(), socket.socketpair()
    with requests, theirs, service, status:
        with there, asker:
            socket.send_fds(requests, [b"one"], [there.fileno(), asker.fileno()])
        assert ForkLoop(theirs)._serve_request()
        assert (service.recv(1), status.recv(1)) == (b"", b""), "whoever asked learns that there is none"


def test_a_process_that_cannot_be_ended_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "KILL_WAIT_SECONDS", 0.1)
    stuck = Child(f"{SERVICES}:Slow")
    stuck.start()
    process = stuck._process
    assert process is not None
    monkeypatch.setattr(process, "kill", lambda: None)
    monkeypatch.setattr(stuck, "_connection", None)
    begun = time.monotonic()
    stuck.kill()
    assert time.monotonic() - begun < 5.0
    monkeypatch.undo()
    process.kill()
    process.wait()
