"""Fork server process: imports a module, forks on request, reports exits."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait

from attrs import define, field

from .child import serve

#: Bytes of a request, and the file descriptors in it: the connection to serve on, and the one for status reports.
REQUEST, CONNECTIONS = 16, 2
#: Bytes that are read at once from the wake-up pipe.
WAKEUP_BYTES = 4096


def main() -> None:
    """Serve as a fork server program for a module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_copies(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])


def serve_copies(requests: socket.socket, module: str, ready: Callable[[], object] = lambda: None) -> None:
    """Import a module, prepare it for forking, and fork on every request.

    `ready` is called once requests are accepted.
    """
    with suppress(Exception):  # a worker that needs the module reports the same error
        getattr(import_module(module), "before_forks", lambda: None)()
    gc.freeze()
    ready()
    ForkLoop(requests).run()


@define
class ForkLoop:
    """Fork this process once for each request.

    `running` has the receiver of each child's exit code.
    """

    requests: socket.socket
    running: dict[int, socket.socket] = field(factory=dict)
    _woken: int = field(init=False)
    _wake: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self) -> None:
        """Serve until the request connection closes and all children have ended."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        asked = True
        while asked or self.running:
            ready = wait([self._woken, *([self.requests] if asked else [])])
            if self._woken in ready:
                os.read(self._woken, WAKEUP_BYTES)
                self._report_exits()
            if self.requests in ready:
                asked = self._serve_request()

    def _serve_request(self) -> bool:
        """Fork a child for a request; return whether there was one."""
        message, numbers, _, _ = socket.recv_fds(self.requests, REQUEST, CONNECTIONS)
        if not message:
            return False
        service, status = numbers
        asker = socket.socket(fileno=status)
        try:
            copy = os.fork()
        except OSError:  # too many processes, or too little memory: the requester sees the connection end
            asker.close()
            os.close(service)
            return True
        if not copy:
            self._serve(service, asker)
        os.close(service)
        self.running[copy] = asker
        _send_number(asker, copy)
        return True

    def _serve(self, service: int, asker: socket.socket) -> None:
        """Serve as a child, and exit; the server's files are closed first, as others wait for their end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (self.requests, asker, *self.running.values()):
                each.close()
            os.close(self._woken)
            os.close(self._wake)
            serve(Connection(service))
            code = 0
        except BaseException:  # no exception may reach the server's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _report_exits(self) -> None:
        for copy in list(self.running):
            ended, status = os.waitpid(copy, os.WNOHANG)
            if ended:
                asker = self.running.pop(copy)
                _send_number(asker, os.waitstatus_to_exitcode(status))
                asker.close()


def _send_number(asker: socket.socket, number: int) -> None:
    with suppress(OSError):  # the receiver has gone
        asker.send(str(number).encode())
