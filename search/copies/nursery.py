"""A process that imports once what many children need, and makes them by copying itself: sixteen that import it side by
side take all cores for two seconds.

It is a copy of the process that asks, where that may be copied (`twin.py`), else a program of its own, as single
children are (`../child.py`). It does nothing but import, what the module does once for all copies (`before_copies`),
and copy: it has no GPU context and no threads that do anything, so that a copy begins where it is. Its libraries get
one thread each for the same reason.
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

from .twin import COPYING, Twin, copy_this, may_be_copied

#: What keeps libraries from threads, which a copy would not have.
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: What gives the GNU C library's memory large pages, where the system has them for who asks: a copy's first kernel then
#: takes its compiler 2,800 page faults in place of 8,500 (`../memory.py` says what these cost).
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
#: What keeps a compiler from opening GPUs, which copies do not use.
BLIND = {"CUDA_VISIBLE_DEVICES": "-1"}
#: Bytes of a message that says which process was born, or how it ended.
NUMBER = 12


class ProcessCopy:
    """A process that a nursery made, with what `subprocess.Popen` has of one: `status` says first which it is, then how
    it ended.
    """

    def __init__(self, status: socket.socket, unborn: Callable[[], None]) -> None:
        self._status = status
        self._unborn = unborn
        self.pid: int | None = None
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that ended it; nothing where it runs."""
        while self.returncode is None and self._readable(0.0):
            self._read()
        return self.returncode

    @property
    def stillborn(self) -> bool:
        """Whether the nursery ended before it made the process."""
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
        """End it at once; one that is not born yet never will be."""
        if self.poll() is not None:
            return
        if self.pid is None:
            self._unborn()
        else:
            os.kill(self.pid, signal.SIGKILL)

    def _readable(self, timeout: float | None) -> bool:
        return bool(select.select([self._status], [], [], timeout)[0])

    def _read(self) -> None:
        said = self._status.recv(NUMBER)
        if said and self.pid is None:
            self.pid = int(said)
            return
        self.returncode = int(said) if said else 1  # whoever would have said it is gone
        self._status.close()


class Nursery:
    """Makes processes that have imported a module; where it is lost, `copy` says so."""

    @staticmethod
    def possible() -> bool:
        """Whether a process may be copied here: elsewhere system libraries do not stand it."""
        return sys.platform == "linux"

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | Twin | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start it, without waiting for it; it is started once."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = self._made(theirs)
        theirs.close()
        self._control = ours

    def _made(self, requests: socket.socket) -> subprocess.Popen[bytes] | Twin:
        if may_be_copied(self.module):
            with suppress(OSError):  # there is too little memory, or are too many processes
                return copy_this(requests, self.module, ALONE | BLIND)
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", f"from {COPYING} import main; main()", str(requests.fileno()), self.module]
        return subprocess.Popen(
            command,
            pass_fds=[requests.fileno()],
            env=LARGE_PAGES | os.environ | ALONE | BLIND | paths,
            stdin=subprocess.DEVNULL,
            stdout=2,
            process_group=0,
        )

    def copy(self, service: int) -> ProcessCopy:
        """Have a process made that serves on a connection, whose number here is given.

        Raises `OSError` where the nursery is gone.
        """
        self.start()
        if self._control is None:
            raise BrokenPipeError("the nursery was closed")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._control, [b"one"], [service, theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ProcessCopy(ours, self.kill)

    def kill(self) -> None:
        """End it at once: what is not born yet never will be."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """End it, once the processes that it made have ended."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
