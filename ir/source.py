"""Source text, spans, and messages that point into the text."""

from __future__ import annotations

from attrs import field, frozen

#: Characters of a line that a message shows at most.
_MAX_LINE_CHARACTERS = 160


@frozen
class Source:
    """A named text: a `.cuts` file, an IR dump, a JSON document."""

    name: str
    text: str = field(repr=False)

    def line_column(self, offset: int) -> tuple[int, int]:
        """Return the 1-based line and column of a character offset."""
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1

    def line(self, number: int) -> str:
        """Return the text of a 1-based line, without its newline."""
        lines = self.text.split("\n")
        return lines[number - 1] if 0 < number <= len(lines) else ""


@frozen
class Span:
    """A half-open range of characters in a source."""

    source: Source
    start: int
    end: int

    @property
    def position(self) -> str:
        """`file:line:column` of the first character."""
        line, column = self.source.line_column(self.start)
        return f"{self.source.name}:{line}:{column}"

    def render(self, message: str, hint: str = "", severity: str = "error") -> str:
        """Return the message with position, source line and a caret."""
        line, column = self.source.line_column(self.start)
        text, column = _cut(self.source.line(line), column)
        width = max(1, min(self.end - self.start, len(text) - column + 1))
        margin = f"{line:4} | "
        caret = " " * (len(margin) - 2) + "| " + " " * (column - 1) + "^" * width
        return f"{self.position}: {severity}: {message}\n{margin}{text}\n{caret}{' ' + hint if hint else ''}"


def _cut(text: str, column: int) -> tuple[str, int]:
    """Return the part of a long line around a column, and the column in it: a document may be one line."""
    if len(text) <= _MAX_LINE_CHARACTERS:
        return text, column
    start = max(0, min(column - 1 - _MAX_LINE_CHARACTERS // 4, len(text) - _MAX_LINE_CHARACTERS))
    part = text[start : start + _MAX_LINE_CHARACTERS]
    left, right = "... " if start else "", " ..." if start + _MAX_LINE_CHARACTERS < len(text) else ""
    return f"{left}{part}{right}", column - start + len(left)
