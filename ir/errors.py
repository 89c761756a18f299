"""The errors a user can cause. Each says where, what was expected, what was found and what to do.

`assert` stays for our own bugs. The command line maps `exit_code` to the process's exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from .source import Span

E = TypeVar("E", bound="CutsError")
#: Exceptions that show a fault of the compiler where a legal graph meets them, and what a user can do about it.
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


class CutsError(Exception):
    """Base of every error that `cuts` raises on purpose.

    `span` is the text at fault; `used` is where another text makes use of it, as a node of a graph does of a
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
    """The command line or an API call is not one we understand."""

    exit_code = 2


class ParseError(CutsError):
    """A text does not follow its grammar."""


class SpecError(CutsError):
    """A declaration parses but does not mean anything consistent."""


class GraphError(CutsError):
    """A graph is invalid, unsupported, or does not fit the declarations of its operations."""


class UnknownOp(GraphError, KeyError):
    """The vocabulary has no operation of this name, whatever its operands are."""

    __str__ = GraphError.__str__


class VerifyError(CutsError):
    """An IR breaks one of its named invariants."""


class PassError(CutsError):
    """A pass could not do its work; carries the pass name once."""


class InternalError(PassError):
    """A pass met a fault of the compiler: the exception that showed it is the cause."""


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
    """A model needs what the vocabulary has not; `nodes` tells the nodes that do,
    each by the name of its first result.
    """

    def __init__(self, errors: Sequence[CutsError], nodes: Sequence[str]) -> None:
        super().__init__(errors)
        self.nodes = tuple(nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return VocabularyError, (self.errors, self.nodes)


class CutsWarning(UserWarning):
    """Something was done as asked, or assumed where nothing was said, that may not be what was meant."""


def parts_of(error: CutsError) -> tuple[CutsError, ...]:
    """Return the single errors that an error consists of."""
    return error.errors if isinstance(error, ErrorList) else (error,)


def retold(error: CutsError, kind: Callable[..., E], prefix: str = "", used: Span | None = None) -> E:
    """Return an error as one of another kind, with words before its message; its places and its hint stay.

    `used` is a place from which the error was reached: the second one, or the only one of an error without any.
    """
    if error.span is None:
        return kind(f"{prefix}{error.message}", used, error.hint)
    return kind(f"{prefix}{error.message}", error.span, error.hint, error.used or used)


@contextmanager
def naming_faults(place: str) -> Iterator[None]:
    """Raise exceptions that are none of ours as an `InternalError` that names a place: a stage, or nodes."""
    try:
        yield
    except InternalError as error:
        raise retold(error, InternalError, f"{place}: ") from error.__cause__
    except CutsError:
        raise
    except FAULTS as error:
        raise InternalError(f"{place}: {type(error).__name__}: {error}", hint=REPORT) from error


def raise_all(errors: Sequence[CutsError]) -> None:
    """Raise nothing for no errors, the error itself for one, an `ErrorList` for several."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ErrorList(errors)


def quote(name: str) -> str:
    """Return a user's name in quotes, with control characters escaped and long names cut, for use in messages."""
    text = name if len(name) <= 80 else name[:77] + "..."
    return "'" + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + "'"


@contextmanager
def whole_file(
    path: str | os.PathLike[str], what: str = "", errors: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """Yield where to write what then takes the place of a file at once: it is there whole or not at all, and nothing is
    left of what was not finished.

    Raises `UsageError` where it cannot be written, `what` it is: an `OSError`, or one of the `errors` by which whoever
    writes tells of it.
    """
    file = Path(path)
    told: tuple[type[Exception], ...] = (OSError, *errors)
    draft = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        try:
            yield draft
            with open(draft, "rb") as written:
                os.fsync(written.fileno())  # so that its name never comes before its bytes
            os.replace(draft, file)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
    except told as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(f"cannot write {what}{' ' if what else ''}{file}: {reason}") from error
