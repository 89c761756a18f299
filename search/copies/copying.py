"""What a nursery's process does: it imports a module, makes copies of itself that serve, and says how they ended."""

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

from ..child import serve

#: Bytes of a request, and the connections that it brings: the one to serve on, and the one to say how that ended.
REQUEST, CONNECTIONS = 16, 2
#: Bytes that are read at once of what says that copies have ended.
MANY = 4096


def main() -> None:
    """Serve as a nursery that is a program, of a module that is named, with requests on a connection of a number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_copies(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])


def serve_copies(requests: socket.socket, module: str, ready: Callable[[], object] = lambda: None) -> None:
    """Import a module, do what it does once for all copies, and copy this process whenever that is asked for, from when
    it is `ready`.
    """
    with suppress(Exception):  # whoever needs the module meets this again, and says so
        getattr(import_module(module), "before_copies", lambda: None)()
    gc.freeze()
    ready()
    Copying(requests).run()


@define
class Copying:
    """Makes copies of this process, one for each request; `running` has whom to tell how each ended."""

    requests: socket.socket
    running: dict[int, socket.socket] = field(factory=dict)
    _woken: int = field(init=False)
    _wake: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self) -> None:
        """Go on until nobody asks any more and all copies have ended."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        asked = True
        while asked or self.running:
            ready = wait([self._woken, *([self.requests] if asked else [])])
            if self._woken in ready:
                os.read(self._woken, MANY)
                self._tell_ended()
            if self.requests in ready:
                asked = self._answer()

    def _answer(self) -> bool:
        """Make the copy that is asked for; say whether anybody asked."""
        message, numbers, _, _ = socket.recv_fds(self.requests, REQUEST, CONNECTIONS)
        if not message:
            return False
        service, status = numbers
        asker = socket.socket(fileno=status)
        try:
            copy = os.fork()
        except OSError:  # too many processes, or too little memory: whoever asked sees the connection end
            asker.close()
            os.close(service)
            return True
        if not copy:
            self._serve(service, asker)
        os.close(service)
        self.running[copy] = asker
        _tell(asker, copy)
        return True

    def _serve(self, service: int, asker: socket.socket) -> None:
        """Serve as a copy, and end; what is the nursery's is let go first, as others wait for its end."""
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
        except BaseException:  # nothing may get to where the nursery goes on
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _tell_ended(self) -> None:
        for copy in list(self.running):
            ended, status = os.waitpid(copy, os.WNOHANG)
            if ended:
                asker = self.running.pop(copy)
                _tell(asker, os.waitstatus_to_exitcode(status))
                asker.close()


def _tell(asker: socket.socket, number: int) -> None:
    with suppress(OSError):  # it does not want to know any more
        asker.send(str(number).encode())
