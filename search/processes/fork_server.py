"""Fork server: a process that imports modules once and forks many children.

Sixteen processes that import the same modules at once take all cores for two seconds. The server is a fork of this
process, where that is possible (`self_fork.py`), else a program of its own, as single children are (`../child.py`). It
only imports, prepares the module for forks (`before_forks`), and forks: it has no GPU context and no active threads, so
that a child starts in the same state. Its libraries get one thread each for the same reason.

Seconds until 3, and 16, workers of a search answer, on two cores that others use, where the imports take 3.4 to 4.4:

    fork of this process                              0.1    0.3
    program that imports                              3.0    3.5
    `multiprocessing`'s fork server, preloaded        3.4    4.1

The server of `multiprocessing` always is a program. It imports the user's script in every child, has one environment
and one list of modules for all its users, and reports no start that failed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from .self_fork import FORK_LOOP_MODULE, SelfFork, fork_self, may_be_forked

#: Environment that keeps libraries from starting threads, which a fork would not have.
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: Environment that gives the GNU C library's memory large pages where available: the compiler of a fork's first kernel
#: then takes 2,800 page faults instead of 8,500 (`../memory.py` describes their cost).
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
#: Environment that hides GPUs, which forks do not use.
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
#: Bytes of a message with a process number or exit code.
MESSAGE_BYTES = 12


class ForkedProcess:
    """Forked process with the interface of `subprocess.Popen`.

    Its status connection first delivers its number, then its exit code.
    """

    def __init__(self, status: socket.socket, cancel: Callable[[], None]) -> None:
        self._status = status
        self._cancel = cancel
        self.pid: int | None = None
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal; None while it runs."""
        while self.returncode is None and self._readable(0.0):
            self._read()
        return self.returncode

    @property
    def never_started(self) -> bool:
        """True if the fork server ended before it made the process."""
        return self.poll() is not None and self.pid is None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once there is one.

        Raises `subprocess.TimeoutExpired` where there is none in time.
        """
        while self.returncode is None:
            if not self._readable(timeout):
                raise subprocess.TimeoutExpired("a copied process", timeout or 0.0)
            self._read()
        return self.returncode

    def kill(self) -> None:
        """Kill the process, or prevent its start."""
        if self.poll() is not None:
            return
        if self.pid is None:
            self._cancel()
        else:
            os.kill(self.pid, signal.SIGKILL)

    def _readable(self, timeout: float | None) -> bool:
        return bool(select.select([self._status], [], [], timeout)[0])

    def _read(self) -> None:
        said = self._status.recv(MESSAGE_BYTES)
        if said and self.pid is None:
            self.pid = int(said)
            return
        self.returncode = int(said) if said else 1  # the server that would have sent it has ended
        self._status.close()


class ForkServer:
    """Fork server for processes that have imported a module.

    `fork` raises an error where the server is lost.
    """

    @staticmethod
    def is_supported() -> bool:
        """Return whether the platform supports forks: only Linux's system libraries do."""
        return sys.platform == "linux"

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | SelfFork | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the server once, without waiting for it."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = self._start_process(theirs)
            except OSError:
                ours.close()
                raise
        self._control = ours

    def _start_process(self, requests: socket.socket) -> subprocess.Popen[bytes] | SelfFork:
        if may_be_forked(self.module):
            with suppress(OSError):  # too little memory, or too many processes
                return fork_self(requests, self.module, SINGLE_THREADED | WITHOUT_GPUS)
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [
            sys.executable,
            "-c",
            f"from {FORK_LOOP_MODULE} import main; main()",
            str(requests.fileno()),
            self.module,
        ]
        return subprocess.Popen(
            command,
            pass_fds=[requests.fileno()],
            env=LARGE_PAGES | os.environ | SINGLE_THREADED | WITHOUT_GPUS | paths,
            stdin=subprocess.DEVNULL,
            stdout=2,
            process_group=0,
        )

    def fork(self, service: int) -> ForkedProcess:
        """Fork a process that serves on the connection with a file descriptor.

        Raises `OSError` where the server is gone.
        """
        self.start()
        if self._control is None:
            raise BrokenPipeError("the fork server was closed")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._control, [b"one"], [service, theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ForkedProcess(ours, self.kill)

    def kill(self) -> None:
        """Kill the server; requested processes without a start will not run."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """End the server, once its processes have ended."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
