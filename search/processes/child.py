"""Child processes for work that may crash, hang or take long.

Each hosts one object and runs its methods one after another. A child is a program of its own, not a fork of this
process, so that it shares no GPU context, and a script that uses the library needs no guard around its main part. Many
children are forks of a process that was started like that (`copies/`). A child ends when the connection closes.
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

from ...ir import BackendError, CutsError
from ..trace import HERE
from .fork_server import ForkedProcess, ForkServer
from .gc_tuning import keep_freed_memory

#: Seconds in which a child must have imported its modules and made its object.
START_LIMIT = 120.0
#: Seconds in which a killed process ends.
KILL_WAIT_SECONDS = 5.0
#: Seconds between two checks of the time limit.
POLL_SECONDS = 0.1


class ChildLost(Exception):
    """Error: the child crashed, or was stopped after its limit (`hung`)."""

    def __init__(self, reason: str, hung: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung


class SessionEnded(Exception):
    """Error: the session's time is over and there will be no answer."""


class Child:
    """Child process, started by the first request and after each loss.

    `service` is "module:class"; the object is made from `arguments`. `send` sends a request and `receive` returns its
    answer; it gives up, and ends the process, once `over` is true. A `fork_server` forks the process while it exists.
    Its activity is traced under its `role`, the name of the class.
    """

    def __init__(
        self,
        service: str,
        *arguments: object,
        over: Callable[[], bool] = lambda: False,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.service = service
        self.role = service.partition(":")[2]
        self.fork_server = fork_server
        self.over = over
        self.arguments = arguments
        self.starts = 0
        self._fresh = False
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._connection: Connection | None = None

    @property
    def alive(self) -> bool:
        """True if there is a process that has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def connection(self) -> Connection:
        """Connection on which an answer arrives."""
        assert self._connection is not None, "a request was sent"
        return self._connection

    def start(self) -> None:
        """Start the process if there is none.

        Where its object cannot be made, every request is answered with the reason.
        """
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._process = self._start_process(theirs.fileno())
            self._connection = Connection(ours.detach())
        self.starts += 1
        self._fresh = True
        with suppress(OSError):  # a process that has ended is reported by its next request
            self.connection.send((self.service, self.arguments))

    def _start_process(self, service: int) -> subprocess.Popen[bytes] | ForkedProcess:
        """Return a process that serves on the connection with a file descriptor."""
        if self.fork_server is not None:
            try:
                return self.fork_server.fork(service)
            except OSError:
                self.fork_server = None
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", f"from {__name__} import main; main()", str(service)]
        # Output of libraries goes to standard error, not into the output of a command. Keyboard interrupts are for this
        # process only: hence a process group of its own.
        return subprocess.Popen(
            command, pass_fds=[service], env=environment, stdin=subprocess.DEVNULL, stdout=2, process_group=0
        )

    def send(self, method: str, *arguments: object) -> None:
        """Request a call of a method."""
        try:
            self.start()
            # no request was sent to it yet
            if isinstance(self._process, ForkedProcess) and self._process.never_started:
                self.kill()
                self.start()
            self.connection.send((method, arguments))
        except OSError as error:
            raise self._loss(error) from None

    def receive(self, limit: float, start: float = START_LIMIT) -> Any:
        """Return the answer to the request.

        An exception of the method is raised here. Raises `ChildLost` where there will be no answer or the process does
        not `start` in time, and `SessionEnded` where time is over first.
        """
        try:
            ready = self.ready(start)
            if not ready or not self._poll(limit):
                self.kill()
                raise ChildLost(
                    f"no answer in {limit:g} seconds" if ready else "the process does not start", hung=ready
                )
            error, value, did = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._loss(error) from None
        HERE.merge(did, self.role)
        if error is not None:
            raise error
        return value

    def ready(self, limit: float) -> bool:
        """Wait until the process has started, and return whether it has.

        A request's limit does not include the start.
        """
        if self._fresh and self._poll(limit):
            self.connection.recv()
            self._fresh = False
        return not self._fresh

    def _has_started(self) -> bool:
        try:
            return self.connection.poll(0.0)
        except (EOFError, OSError):
            return True

    def answers(self, timeout: float) -> bool:
        """Return within `timeout` seconds whether `receive` need not wait."""
        try:
            return not self.alive or (self.ready(timeout) and self._poll(timeout))
        except (EOFError, OSError):
            return True

    def _poll(self, limit: float) -> bool:
        """Wait for data in short turns, as a signal that ends the session interrupts none of them."""
        end = time.monotonic() + limit
        while not self.connection.poll(max(0.0, min(POLL_SECONDS, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
            if self.over():
                self.kill()
                raise SessionEnded
        return True

    def call(self, limit: float, method: str, *arguments: object) -> Any:
        """Send a request and return its answer."""
        self.send(method, *arguments)
        return self.receive(limit)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def close(self) -> None:
        """Close the connection, and wait a moment for the process to end.

        One that is still starting has nothing to end, and is killed.
        """
        if self._fresh and self._process is not None and not self._has_started():
            self.kill()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._close()

    def _loss(self, error: Exception) -> ChildLost:
        if self._process is None:
            return ChildLost(f"the process cannot be started: {error}")
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = -signal.SIGKILL
        self._close()
        why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ChildLost(f"the process ended with {why}")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):  # the system holds it, for example during a page fault
                self._process.wait(KILL_WAIT_SECONDS)
        self._process = self._connection = None


def serve(connection: Connection) -> None:
    """Make the requested object, and answer requests until the connection closes."""
    keep_freed_memory()
    service, failure = _make(connection)
    try:
        connection.send("ready")
    except OSError:  # the parent was interrupted and has left
        return
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            return
        with HERE.recording(method):
            error, value = (failure, None) if failure else _answer(service, method, arguments)
        try:
            connection.send((error, value, HERE.take()))
        except OSError:
            return


def _answer(service: object, method: str, arguments: tuple[object, ...]) -> tuple[CutsError | None, Any]:
    try:
        return None, getattr(service, method)(*arguments)
    except CutsError as error:
        return error, None
    except Exception as error:  # a bug, or a library's own error: the caller must see it
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
    """Serve on the connection of the first argument; the parent handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
