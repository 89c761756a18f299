"""A nursery that is a copy of the process that asks: it has imported what workers need, so that they answer at once
where a program would import it first (2 s of a search that takes 20, on a host whose processors are slow).

Not every process may be copied. Its threads would not be there, but what they had locked. So it is done only where none
are to be seen but those of libraries that are known to be left alone in copies, and else a program is started
(`nursery.py`): OpenBLAS ends its threads before a process is copied, and makes new ones behind it; the CUDA driver
answers copies that there is no GPU, which is what workers want, and is else not called by them.
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

from ..course import HERE
from .threads import keep_one_thread, library_threads

#: Libraries that do not stand it: what they hold open is there in copies, too.
UNFIT = ("libOpenCL.so", "libpocl", "libamdhip64")
#: How the system calls threads of the CUDA driver.
DRIVER = "cuda"
#: Seconds in which a copy must be ready for requests: it ends itself else, and single processes are started. Ready is
#: it in a fraction of one; a compiler that is read from a disk far away may take several.
READY = 30
#: Bytes of memory from which on the system takes long to copy a process, whatever is shared.
LARGE = 2 << 30
#: Seconds between two looks at whether it has ended.
LOOK = 0.01
#: The system's number for "a process has this name", and the name.
SET_NAME, NAME = 15, b"cuts-nursery"
#: The module of what a nursery does, which needs what needs nurseries.
COPYING = f"{__package__}.copying"
#: What streams a copy had that it must not close, as they may hold text that the other process has yet to write.
_LEFT: list[object] = []


def may_be_copied(module: str) -> bool:
    """Whether a copy of this process would do for a nursery: one that has imported a module, has one thread but for
    those of libraries that know of copies, and nobody that watches each of its steps.
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
    unfit = any(library in maps for library in UNFIT)
    others = sum(not name.startswith(DRIVER) for name in threads)
    return not unfit and resident < LARGE and others <= 1 + library_threads()


@define
class Twin:
    """A copy of this process, with what `subprocess.Popen` has of one that is needed."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended it; nothing where it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else asked first
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
            time.sleep(LOOK)
        return code

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def copy_this(requests: socket.socket, module: str, environment: dict[str, str]) -> Twin:
    """Copy this process; the copy answers requests as a nursery of a module.

    Raises `OSError` where the system has no room for it.
    """
    import_module(COPYING)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python cannot know whose threads there are
            pid = os.fork()
        if not pid:
            _become_nursery(requests, module, environment, blocked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Twin(pid)


def _become_nursery(
    requests: socket.socket, module: str, environment: dict[str, str], blocked: set[int | signal.Signals]
) -> NoReturn:
    """Let go what is the other process's, and answer requests until nobody asks any more."""
    gc.freeze()  # what is garbage there may be memory of a GPU, which is not for us to give back
    try:
        os.setpgid(0, 0)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(READY)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).prctl(SET_NAME, NAME, 0, 0, 0)
        _let_go(requests.fileno())
        os.environ.update(environment)
        keep_one_thread()
        HERE.done.clear()
        import_module(COPYING).serve_copies(requests, module, lambda: signal.alarm(0))
    except BaseException:  # nothing may get to where the other process goes on
        traceback.print_exc()
    finally:
        os._exit(0)


def _let_go(kept: int) -> None:
    """Close all files but one and standard error, in whose place what libraries print goes there, too. Their numbers
    are kept by a file that is nothing: what still knows of them may close them at any time.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if (number := int(name)) > 2 and number not in (kept, nothing):
            with suppress(OSError):
                os.dup2(nothing, number, inheritable=False)
    with suppress(OSError):
        os.dup2(nothing, 0)
        os.dup2(2, 1)
    _LEFT.extend((sys.stdin, sys.stdout, sys.stderr))
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
