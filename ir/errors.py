"""Errors that a user can cause.

Each one names the place, the expected and the found value, and a remedy. `assert` is for internal bugs. The command
line maps `exit_code` to the process's exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from .source import Span

E = TypeVar("E", bound="CutsError")
#: Exceptions that show a fault of the compiler where a legal graph meets them.
FAULTS = (
    AssertionError,
    LookupError,
    ArithmeticError,
    ValueError,
    TypeError,
    AttributeError,
    StopIteration,
    RecursionError,
)
REPORT = "this is a fault of cuts, not of the graph: please report it with the graph and the exception that caused it"

#: Name under which the package is installed; it is imported as `cuts`, a name that another published project has.
DISTRIBUTION = "cuts-compiler"


def install_command(*extras: str) -> str:
    """Return the command that installs the package with these extras.

    In an environment that has the package it adds the packages of the extras.
    """
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'" if extras else f"pip install {DISTRIBUTION}"


class CutsError(Exception):
    """Base of every error that `cuts` raises on purpose.

    `span` is the text at fault; `used` is the place of a use in another text, as of a graph's node that uses a
    declaration.
    """

    exit_code = 3

    def __init__(self, message: str, span: Span | None = None, hint: str = "", used: Span | None = None) -> None:
        super().__init__(message, span, hint, used)
        self.message = message
        self.span = span
        self.hint = hint
        self.used = used

    def __str__(self) -> str:
        if self.span is None:
            return f"{self.message}; {self.hint}" if self.hint else self.message
        text = self.span.render(self.message, self.hint)
        return text if self.used is None else f"{text}\n{self.used.render('it is used here', severity='note')}"


class UsageError(CutsError):
    """Invalid command line or API call."""

    exit_code = 2


class ParseError(CutsError):
    """Text that does not follow its grammar."""


class SpecError(CutsError):
    """Declaration that parses but has no consistent meaning."""


class GraphError(CutsError):
    """Invalid or unsupported graph, or one at odds with its declarations."""


class SymbolicShapeError(GraphError):
    """Raised for a symbolic shape where a static one is wanted."""


class UnknownOp(GraphError, KeyError):
    """Operation that the vocabulary does not have, with any operands."""

    __str__ = GraphError.__str__


class VerifyError(CutsError):
    """An IR breaks one of its named invariants."""


class PassError(CutsError):
    """A pass could not do its work; carries the pass name once."""


class InternalError(PassError):
    """A fault of the compiler in a pass, with its cause."""


class PlanError(CutsError):
    """A plan folder is missing, incomplete, foreign or damaged."""


class BackendError(CutsError):
    """A device or a toolchain is missing or refused its work."""

    exit_code = 4


class NumericsError(CutsError):
    """A kernel computed numbers outside the derived tolerance."""

    exit_code = 5


class ErrorList(CutsError):
    """Several errors found in one go, reported together."""

    def __init__(self, errors: Sequence[CutsError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = tuple(errors)
        self.exit_code = max((error.exit_code for error in errors), default=3)

    def __reduce__(self) -> tuple[Any, ...]:
        return ErrorList, (self.errors,)


class VocabularyError(ErrorList, GraphError):
    """Model that needs operations beyond the vocabulary.

    `nodes` lists the nodes that do, each by the name of its first result.
    """

    def __init__(self, errors: Sequence[CutsError], nodes: Sequence[str]) -> None:
        super().__init__(errors)
        self.nodes = tuple(nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return VocabularyError, (self.errors, self.nodes)


class CutsWarning(UserWarning):
    """Warning of a request or an assumption that may not be intended."""


def single_errors(error: CutsError) -> tuple[CutsError, ...]:
    """Return the single errors of an error."""
    return error.errors if isinstance(error, ErrorList) else (error,)


def convert_error(error: CutsError, kind: Callable[..., E], prefix: str = "", used: Span | None = None) -> E:
    """Convert an error to another kind, with a prefix of its message.

    Its places and its hint stay. `used` is a place from which the error was reached: the second one, or the only one
    of an error without any.
    """
    if error.span is None:
        return kind(f"{prefix}{error.message}", used, error.hint)
    return kind(f"{prefix}{error.message}", error.span, error.hint, error.used or used)


@contextmanager
def naming_faults(place: str) -> Iterator[None]:
    """Raise foreign exceptions as an `InternalError` that names a stage or nodes."""
    try:
        yield
    except InternalError as error:
        raise convert_error(error, InternalError, f"{place}: ") from error.__cause__
    except CutsError:
        raise
    except FAULTS as error:
        raise InternalError(f"{place}: {type(error).__name__}: {error}", hint=REPORT) from error


def raise_all(errors: Sequence[CutsError]) -> None:
    """Raise all errors together.

    No error raises nothing, one is raised as it is, several as an `ErrorList`.
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ErrorList(errors)


def quote(name: str) -> str:
    """Return a user's name in quotes for messages.

    Control characters are escaped and long names cut.
    """
    text = name if len(name) <= 80 else name[:77] + "..."
    return "'" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + "'"


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], kind: str = "", errors: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """Yield a temporary path that replaces a file atomically.

    The file is complete or absent; an interrupted write leaves nothing. Raises `UsageError`, with `kind` as the file's
    description, where it cannot be written: on an `OSError`, or on one of the `errors` that a writer raises.
    """
    file = Path(path)
    caught: tuple[type[Exception], ...] = (OSError, *errors)
    draft = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        try:
            yield draft
            with open(draft, "rb") as finished:
                os.fsync(finished.fileno())  # so that its name never comes before its bytes
            os.replace(draft, file)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
    except caught as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(f"cannot write {kind}{' ' if kind else ''}{file}: {reason}") from error
