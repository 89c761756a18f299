"""Child processes that do what may crash, hang or take long: each hosts one object and runs its methods one after
another.

A child is started as a program of its own, not by copying this process, so that it shares no GPU context with us, and
so that a script that uses the library needs no guard around its main part; or by copying a process that was started
like that (`copies/`), where there are many. It ends when the connection closes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from ..ir import BackendError, CutsError
from .copies import Nursery, ProcessCopy
from .course import HERE
from .memory import keep_freed

#: Seconds in which a child must have imported what it needs and made its object.
START_LIMIT = 120.0
#: Seconds in which a process that was killed has ended.
GONE = 5.0
#: Seconds between two looks at whether time is over.
LOOK = 0.1


class Lost(Exception):
    """A child is gone: it crashed, or it was stopped because it took too long (`hung`)."""

    def __init__(self, reason: str, hung: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung


class Ended(Exception):
    """The time that a session has is over; what was asked for will not be answered."""


class Child:
    """One child process; it is started by the first request and again by the first one after a loss.

    `service` is "module:class"; the object is made from `arguments`. A request is sent with `send` and answered by
    `receive`, which gives up, and ends the process, once `over` says so. A `nursery` makes the process, as long as
    there is one. What it did is taken down under its `role`, which is the name of the class.
    """

    def __init__(
        self,
        service: str,
        *arguments: object,
        over: Callable[[], bool] = lambda: False,
        nursery: Nursery | None = None,
    ) -> None:
        self.service = service
        self.role = service.partition(":")[2]
        self.nursery = nursery
        self.over = over
        self.arguments = arguments
        self.starts = 0
        self._fresh = False
        self._process: subprocess.Popen[bytes] | ProcessCopy | None = None
        self._connection: Connection | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def connection(self) -> Connection:
        """What to wait for an answer on."""
        assert self._connection is not None, "a request was sent"
        return self._connection

    def start(self) -> None:
        """Start the process if there is none; where its object cannot be made,
        every request is answered with the reason.
        """
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._process = self._made(theirs.fileno())
            self._connection = Connection(ours.detach())
        self.starts += 1
        self._fresh = True
        with suppress(OSError):  # one that has ended already is lost to whoever asks it
            self.connection.send((self.service, self.arguments))

    def _made(self, service: int) -> subprocess.Popen[bytes] | ProcessCopy:
        """Return a process that serves on a connection, whose number here is given."""
        if self.nursery is not None:
            try:
                return self.nursery.copy(service)
            except OSError:
                self.nursery = None
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", f"from {__name__} import main; main()", str(service)]
        # What libraries print must not get into the output of a command, so it goes to standard error. An interrupt
        # from the keyboard is for us alone, from the first moment on: hence a process group of its own.
        return subprocess.Popen(
            command, pass_fds=[service], env=environment, stdin=subprocess.DEVNULL, stdout=2, process_group=0
        )

    def send(self, method: str, *arguments: object) -> None:
        """Ask for a call of a method."""
        try:
            self.start()
            if isinstance(self._process, ProcessCopy) and self._process.stillborn:  # nothing was asked of it yet
                self.kill()
                self.start()
            self.connection.send((method, arguments))
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, limit: float, start: float = START_LIMIT) -> Any:
        """Return the answer to the request; what the method raised is raised here, `Lost` where there will be no
        answer, or the process does not `start` in time, `Ended` where time is over before there is one.
        """
        try:
            ready = self.ready(start)
            if not ready or not self._poll(limit):
                self.kill()
                raise Lost(f"no answer in {limit:g} seconds" if ready else "the process does not start", hung=ready)
            error, value, did = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost(error) from None
        HERE.take_in(did, self.role)
        if error is not None:
            raise error
        return value

    def ready(self, limit: float) -> bool:
        """Wait until the process has started: what it does then, and not its start,
        is what a request's limit is for.
        """
        if self._fresh and self._poll(limit):
            self.connection.recv()
            self._fresh = False
        return not self._fresh

    def answers(self, timeout: float) -> bool:
        """Whether there is an answer to receive, or will be none; wait for one, but no longer than `timeout`."""
        try:
            return not self.alive or (self.ready(timeout) and self._poll(timeout))
        except (EOFError, OSError):
            return True

    def _poll(self, limit: float) -> bool:
        """Wait for something to read, in short turns, as a signal that ends the session interrupts none of them."""
        end = time.monotonic() + limit
        while not self.connection.poll(max(0.0, min(LOOK, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
            if self.over():
                self.kill()
                raise Ended
        return True

    def call(self, limit: float, method: str, *arguments: object) -> Any:
        """Send a request and return its answer."""
        self.send(method, *arguments)
        return self.receive(limit)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def close(self) -> None:
        """End the process by closing the connection, and wait for it a moment."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._close()

    def _lost(self, error: Exception) -> Lost:
        if self._process is None:
            return Lost(f"the process cannot be started: {error}")
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = -signal.SIGKILL
        self._close()
        why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Lost(f"the process ended with {why}")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):  # the system holds it, as it does while a page is fetched
                self._process.wait(GONE)
        self._process = self._connection = None


def serve(connection: Connection) -> None:
    """Make the object that is asked for, and answer requests until the connection closes."""
    keep_freed()
    service, failure = _make(connection)
    try:
        connection.send("ready")
    except OSError:  # whoever asked was interrupted, and has left
        return
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        with HERE.noting(method):
            error, value = (failure, None) if failure else _answer(service, method, arguments)
        try:
            connection.send((error, value, HERE.hand_over()))
        except OSError:
            return


def _answer(service: object, method: str, arguments: tuple[object, ...]) -> tuple[CutsError | None, Any]:
    try:
        return None, getattr(service, method)(*arguments)
    except CutsError as error:
        return error, None
    except Exception as error:  # a bug, or a library's own error: it must reach whoever asked
        return BackendError(f"{type(error).__name__}: {error}"), None


def _make(connection: Connection) -> tuple[object, CutsError | None]:
    try:
        name, arguments = connection.recv()
        module, _, kind = name.partition(":")
        return getattr(import_module(module), kind)(*arguments), None
    except CutsError as error:
        return None, error
    except Exception as error:
        return None, BackendError(f"{type(error).__name__}: {error}")


def main() -> None:
    """Serve on the connection whose number is the argument; interrupts are the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
