"""Fork server as a fork of this process, with its imported modules.

Workers then answer at once, while a program would import the modules first (2 s of a search of 20 s on a host with slow
cores). Not every process may be forked: its threads would be missing, but not the locks that they hold. So only a
process is forked whose threads are those of libraries that support forks; otherwise a program is started
(`fork_server.py`). OpenBLAS ends its threads before a fork and starts new ones afterwards. The CUDA driver reports no
GPU to forks, as workers need it, and is not called by them otherwise.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from attrs import define

from ..trace import HERE
from .threads import keep_one_thread, library_threads

#: Libraries that do not support forks: their open resources would be shared.
FORK_UNSAFE_LIBRARIES = ("libOpenCL.so", "libpocl", "libamdhip64")
#: Prefix of the names of the CUDA driver's threads.
DRIVER_THREAD_PREFIX = "cuda"
#: Seconds in which a fork must be ready for requests; otherwise it ends itself and single processes are started. It
#: takes a fraction of a second, or several where the compiler is read from a remote disk.
READY_SECONDS = 30
#: Bytes of resident memory from which on a fork takes long, even with shared pages.
MAX_RESIDENT_BYTES = 2 << 30
#: Seconds between two checks of its exit.
POLL_SECONDS = 0.01
#: Number of the prctl option that sets a process name, and the name.
PR_SET_NAME, PROCESS_NAME = 15, b"cuts-forks"
#: Module of the fork server process, which imports modules that import this one.
FORK_LOOP_MODULE = f"{__package__}.copying"
#: Streams of a fork that must not be closed, as they may hold text that the parent has yet to write.
_INHERITED_STREAMS: list[object] = []


def may_be_forked(module: str) -> bool:
    """Return whether a fork of this process can be a fork server.

    The process must have imported the module, have no threads except those of libraries that support forks, and no
    tracer or profiler.
    """
    if threading.active_count() > 1 or threading.current_thread() is not threading.main_thread():
        return False
    if module not in sys.modules or sys.gettrace() is not None or sys.getprofile() is not None:
        return False
    try:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        maps = Path("/proc/self/maps").read_text()
        threads = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    except (OSError, ValueError, IndexError):
        return False
    unfit = any(library in maps for library in FORK_UNSAFE_LIBRARIES)
    others = sum(not name.startswith(DRIVER_THREAD_PREFIX) for name in threads)
    return not unfit and resident < MAX_RESIDENT_BYTES and others <= 1 + library_threads()


@define
class SelfFork:
    """Fork of this process with the interface of `subprocess.Popen`."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal; None while it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another caller has waited for it
                ended, status = self.pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once there is one.

        Raises `subprocess.TimeoutExpired` where there is none in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a copied process", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        """Kill the process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_self(requests: socket.socket, module: str, environment: dict[str, str]) -> SelfFork:
    """Fork this process; the fork is a fork server for a module.

    Raises `OSError` where the system lacks memory or processes.
    """
    import_module(FORK_LOOP_MODULE)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python cannot know the owners of the threads
            pid = os.fork()
        if not pid:
            _become_fork_server(requests, module, environment, blocked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return SelfFork(pid)


def _become_fork_server(
    requests: socket.socket, module: str, environment: dict[str, str], blocked: set[int | signal.Signals]
) -> NoReturn:
    """Release the resources of the parent, and serve requests until the connection closes."""
    gc.freeze()  # garbage of the parent may own GPU memory, which a fork must not free
    try:
        os.setpgid(0, 0)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(READY_SECONDS)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).prctl(PR_SET_NAME, PROCESS_NAME, 0, 0, 0)
        _close_files(requests.fileno())
        os.environ.update(environment)
        keep_one_thread()
        HERE.done.clear()
        import_module(FORK_LOOP_MODULE).serve_copies(requests, module, lambda: signal.alarm(0))
    except BaseException:  # no exception may reach the parent's code
        traceback.print_exc()
    finally:
        os._exit(0)


def _close_files(kept: int) -> None:
    """Close all files but one and standard error, which replaces standard output.

    Their descriptors point to the null device: objects of the parent may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if (number := int(name)) > 2 and number not in (kept, nothing):
            with suppress(OSError):
                os.dup2(nothing, number, inheritable=False)
    with suppress(OSError):
        os.dup2(nothing, 0)
        os.dup2(2, 1)
    _INHERITED_STREAMS.extend((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
