"""Notes, warnings and errors on standard error.

Errors are JSON too on request.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from ...ir import CutsError, CutsWarning, ErrorList
from . import console

DEBUG = "CUTS_DEBUG"


class _Stderr(logging.Handler):
    """Prints records to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def logging_to_stderr(arguments: Namespace) -> Iterator[None]:
    """Context manager that shows notes and warnings during a command.

    Only errors with `--quiet`, all of the log with `--verbose`.
    """
    log = logging.getLogger("cuts")
    handler, before = _Stderr(), log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if arguments.verbose else logging.ERROR if arguments.quiet else logging.INFO)
    try:
        with warnings.catch_warnings():
            others, said = warnings.showwarning, set[str]()

            def show(message: Warning | str, category: type[Warning], *place: object) -> None:
                if not issubclass(category, CutsWarning):
                    others(message, category, *place)  # type: ignore[arg-type]
                elif str(message) not in said:
                    said.add(str(message))
                    log.warning("cuts: warning: %s", message)

            warnings.simplefilter("always", CutsWarning)
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def report(error: CutsError, as_json: bool) -> int:
    """Print each error on a line, and return the exit code."""
    errors = error.errors if isinstance(error, ErrorList) else (error,)
    fail("\n".join(f"cuts: error: {each}" for each in errors))
    if as_json:
        console.print_error({"errors": [error_values(each) for each in errors], "exit_code": error.exit_code})
    return error.exit_code


def report_bug(error: Exception, as_json: bool) -> int:
    """Print that the fault is the compiler's, and return the exit code."""
    text = f"{type(error).__name__}: {error}"
    fail(f"cuts: internal error: {text}; set {DEBUG}=1 for a traceback and report it")
    if as_json:
        console.print_error({"errors": [{"kind": "internal error", "message": text}], "exit_code": 1})
    return 1


def error_values(error: CutsError) -> dict[str, object]:
    """Return an error as JSON: kind, message, hint, and position."""
    values: dict[str, object] = {"kind": type(error).__name__, "message": error.message}
    values |= {"hint": error.hint} if error.hint else {}
    if error.span is not None:
        line, column = error.span.source.line_column(error.span.start)
        values["where"] = {"file": error.span.source.name, "line": line, "column": column}
    return values


def fail(line: str) -> None:
    """Print a line of an error, after its traceback on request."""
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exc()
    print(line, file=sys.stderr)
