"""Self-fork: workers that are copies of the requesting process.

The process continues unchanged, and the copies have nothing of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cuts.search.processes import self_fork
from cuts.search.processes.fork_server import ForkServer

from .test_fork_server import runs

pytestmark = pytest.mark.skipif(not ForkServer.is_supported(), reason="processes are copied on Linux only")

SERVICES = "cuts.tests.search.services"
#: Beginning of a script: a fork server that is a copy of it, and children of that.
BEGIN = f"""
import os, sys, time
from cuts.search.processes.child import Child
from cuts.search.processes import ForkServer, self_fork
import {SERVICES} as services
server = ForkServer("{SERVICES}")
def child(service="Slow"):
    return Child("{SERVICES}:" + service, fork_server=server)
def open_file(process, number):
    try:
        return os.readlink(f"/proc/{{process}}/fd/{{number}}")
    except FileNotFoundError:
        return "closed since"
"""


def script(text: str, **options: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process with one thread."""
    return subprocess.run(
        [sys.executable, "-c", BEGIN + text], capture_output=True, text=True, timeout=120, env=environment() | options
    )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def output_of(text: str, **options: str) -> list[str]:
    """Return the lines that a script prints, which fails nowhere."""
    done = script(text, **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_copies_of_the_asking_process_answer_and_end() -> None:
    process, parents, own, left = output_of("""
made = [child() for _ in range(3)]
found = [each.call(60.0, "process_ids") for each in made]
print(type(server._process).__name__)
print({parent for _, parent in found} == {server._process.pid}, len({pid for pid, _ in found}))
print(os.getppid() != server._process.pid and os.getpgid(server._process.pid) != os.getpgid(0))
for each in made:
    each.close()
server.close()
print([pid for pid, _ in found if os.path.exists(f"/proc/{pid}")], os.path.exists(f"/proc/{server._process.pid}"))
""")
    assert process == "SelfFork"
    assert (parents, own, left) == ("True 3", "True", "[] False")


def test_fork_has_no_files_of_its_parent(tmp_path: Path) -> None:
    """Descriptors may be a database connection, or an awaited pipe end."""
    lines = output_of(
        """
ours = open(os.environ["OURS"], "w")
inlet, outlet = os.pipe()
sys.stdout.write("not written yet, ")
mine = child()
pid, parent = mine.call(60.0, "process_ids")
for process in (pid, parent):
    files = [open_file(process, n) for n in os.listdir(f"/proc/{process}/fd")]
    assert os.environ["OURS"] not in files, files
    assert f"pipe:[{os.fstat(inlet).st_ino}]" not in files, files
os.close(outlet)
assert os.read(inlet, 1) == b"", "no other process has the other end"
ours.write("still here")
ours.close()
mine.close()
server.close()
print(open(os.environ["OURS"]).read())
""",
        OURS=str(tmp_path / "ours"),
    )
    assert lines == ["not written yet, still here"]


def test_forks_leave_keyboard_interrupts_to_their_parent() -> None:
    lines = output_of("""
import signal
signal.signal(signal.SIGTERM, lambda *_: print("ours"))
mine = child()
pid, parent = mine.call(60.0, "process_ids")
for process in (pid, parent):
    os.kill(process, signal.SIGINT)
print(mine.call(60.0, "nap", 0.0))
os.kill(parent, signal.SIGTERM)
print(server._process.wait(10.0) == -signal.SIGTERM)
mine.close()
""")
    assert lines == ["0.0", "True"]


def test_forks_end_with_a_killed_parent() -> None:
    text = """
mine = child()
print(*mine.call(60.0, "process_ids"), flush=True)
time.sleep(300)
"""
    asking = subprocess.Popen(
        [sys.executable, "-c", BEGIN + text], stdout=subprocess.PIPE, env=environment(), text=True
    )
    assert asking.stdout is not None
    processes = [int(number) for number in asking.stdout.readline().split()]
    asking.kill()
    asking.communicate()
    end = time.monotonic() + 20.0
    while any(map(runs, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [process for process in processes if runs(process)]


def test_unready_fork_ends_and_others_replace_it() -> None:
    """A copied lock of a missing thread would never be released."""
    lines = output_of("""
from cuts.search.building.workers import Job, Workers
services.before_forks = lambda: time.sleep(300)
self_fork.READY_SECONDS = 1
workers = Workers(3, services.__name__ + ":Slow")
lost = workers._fork_server._process
for number in range(9):
    workers.submit(Job(number, "process_ids", ()))
found = []
while workers.load:
    found += workers.collect(1.0)
print(type(lost).__name__, lost.wait(), [done.error for done in found if done.error], len(found))
print(len({pid for pid, _ in (done.value for done in found)}) > 1)
workers.close()
""")
    assert lines == [f"SelfFork {-signal.SIGALRM} [] 9", "True"]


def test_process_with_threads_is_not_forked() -> None:
    assert not self_fork.may_be_forked("cuts.search.nowhere")
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        assert not self_fork.may_be_forked(SERVICES)
    finally:
        over.set()
        other.join()
    lines = output_of("""
import numpy as np
np.ones((64, 64)) @ np.ones((64, 64))
print(self_fork.may_be_forked(services.__name__))
sys.settrace(lambda *_: None)
print(self_fork.may_be_forked(services.__name__))
sys.settrace(None)
self_fork.FORK_UNSAFE_LIBRARIES = ("libc.so",)
print(self_fork.may_be_forked(services.__name__))
server.start()
print(type(server._process).__name__)
server.close()
""")
    assert lines == ["True", "False", "False", "Popen"]


def test_garbage_of_the_parent_is_left_to_it() -> None:
    """Garbage may be GPU memory, or a reused file number."""
    lines = output_of("""
import gc
class Ours:
    def __del__(self):
        print("given back by", "us" if os.getpid() == asking else "another", flush=True, file=sys.stdout)
        os.write(outlet, b"x")
asking, (_, outlet) = os.getpid(), os.pipe()
gc.disable()
ours = Ours()
ours.itself = ours
del ours
services.before_forks = gc.collect
mine = child()
mine.call(60.0, "nap", 0.0)
mine.close()
server.close()
gc.collect()
""")
    assert lines == ["given back by us"]


def test_linear_algebra_goes_on_on_both_sides() -> None:
    """OpenBLAS has threads for each core here, and one in a copy."""
    lines = output_of("""
import numpy as np
square = np.ones((400, 400))
square @ square
mine = child("Multiplying")
print(mine.call(60.0, "product"), (square @ square)[0, 0])
mine.close()
server.close()
""")
    assert lines == ["(400.0, 1) 400.0"]


def test_wait_for_a_fork_is_limited() -> None:
    lines = output_of("""
import subprocess
server.start()
try:
    server._process.wait(0.05)
except subprocess.TimeoutExpired:
    print("it runs")
server.kill()
print(server._process.wait())
""")
    assert lines == ["it runs", str(-signal.SIGKILL)]
