"""Rules of the project's language: terms of the field, plain sentences, names that say their content.

    python -m cuts.tests.language [PATH ...]

prints each departure as `file:line: rule: text`; `tests/test_language.py` holds them. Words in backticks are names, not
prose.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[1]
MAX_SUMMARY_WORDS = 12
MAX_TEST_NAME_WORDS = 8
WORDS_PER_RELATIVE = 1000
RELATIVE = re.compile(r"\b(?:what|whatever|whoever|whichever)\b", re.IGNORECASE)
OPENING = re.compile(
    r"(?:What|How|Where|Which|Who|Whoever|Whatever|Whichever|Whether|When|That|Those)(?:'s|ever)?\b(?! is (?:not )?a )"
)
STOP_PHRASES = re.compile(
    r"\b(?:told|apart|behind|in front of|by itself|nobody|somebody|as far as|in the place of|of which|by chance"
    r"|at all|alike)\b",
    re.IGNORECASE,
)
#: Parts of names that hide a thing of the field behind a metaphor or a participle.
_METAPHORS = (
    "told apart behind nobody somebody alike nursery twin hull hulls meetings workshop seam seams foreseeing upheld"
    " contest frugal thorough"
)
STOP_WORDS = frozenset(_METAPHORS.split())
#: Names that the grammar's rules or stored files fix.
FIXED_NAMES = {
    "ops/language/evaluation/evaluator.py": {"_spread"},
    "ops/language/text/transform.py": {"counted", "listed", "spread"},
    "passes/inspection/fusion_report.py": {"apart"}, "passes/model/feature_schema.py": {"alike"},
}  # fmt: skip
STOP_NAMES = frozenset({"second_thoughts", "side_by_side", "telling_inputs", "known_ends", "going_on"})
_IRREGULAR = (
    "made told kept known found held taken given drawn written left built met sent shown chosen seen said bound split"
    " spread run read apart alike begun gone put cut set broken driven grown hidden led lent lost meant paid sold spent"
    " struck sunk taught thought thrown torn worn won wound woken fed felt fit laid lain shut slept sought stood"
)
PARTICIPLES = frozenset(_IRREGULAR.split()) - {"run", "read", "set", "split", "put", "fit", "cut"}
_VAGUE = (
    "MOST FEW LONG KEPT LEAST MANY SHORT LARGE LARGEST SMALL SMALLEST LONGEST SHORTEST WIDE NARROW NEAR FAR AHEAD"
    " BEHIND AMPLE EACH ENOUGH LITTLE MORE LESS SOME OFTEN SELDOM EARLY EARLIER LATE SOON OTHERWISE ABOUT AGAIN APART"
    " ALIKE ONCE TWICE CLOSE DEEP DEEPER FIRST LAST SLOW FAST QUICK HEAVY LIGHT WORTH BESIDES"
)
VAGUE_CONSTANTS = frozenset(_VAGUE.split())
_ADVERBS = (
    "above across alike alone along among apart around aside before behind below beside between beyond both down"
    " each elsewhere every here in most never now off often on only other others out several same there through thus"
    " together under up upon usual whole with within without"
)
#: Words that say where, when or how many, but neither an action nor a result.
ADVERBS = frozenset(_ADVERBS.split())
_VERBS_IN_ED = frozenset(("embed", "feed", "need", "seed", "speed", "shed", "exceed", "proceed", "succeed"))
#: Files that quote departures.
SAMPLES = ("tests/language.py", "tests/test_language.py", "docs/glossary.md")
#: Documents that scripts write.
BUILT = ("docs/ops.md", "docs/modules.md")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")


@frozen
class Departure:
    """A place that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def departures(path: Path) -> Iterator[Departure]:
    """Yield the departures of a Python file, a document or a file of declarations."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        prose = [(n, line) for n, line in _document_lines(text, path.suffix)]
        yield from _prose_departures(name, prose)
        if path.suffix == ".md":
            yield from (Departure(name, n, "commit hash", m[0]) for n, line in prose for m in COMMIT.finditer(line))
        return
    tree = ast.parse(text)
    documented = [*_docstrings(tree)]
    yield from _prose_departures(name, [*documented, *_comments(text)])
    yield from _summary_departures(name, tree)
    yield from _message_departures(name, tree, {line for line, _ in documented})
    yield from _name_departures(name, tree)


def _document_lines(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Yield lines of prose: outside of code in Markdown; comments and quoted summaries of declarations."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if suffix == ".cuts":
            yield number, " ".join([line.partition("#")[2], *re.findall(r'"([^"]*)"', line.partition("#")[0])])
            continue
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith("    "):
            yield number, line


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings of a module with the lines that they begin in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _prose_departures(name: str, prose: list[tuple[int, str]]) -> Iterator[Departure]:
    """Yield relative words beyond one in a thousand words, and phrases of the stop list."""
    plain = [(line, re.sub(r"`[^`]*`", "`", text)) for line, text in prose]
    allowed = sum(len(text.split()) for _, text in plain) // WORDS_PER_RELATIVE
    found = [(line + text[: m.start()].count("\n"), m[0]) for line, text in plain for m in RELATIVE.finditer(text)]
    if len(found) > allowed:
        yield from (Departure(name, line, "relative word", word) for line, word in found)
    for line, text in plain:
        for match in STOP_PHRASES.finditer(" ".join(text.split()) if "\n" not in text else text):
            yield Departure(name, line + text[: match.start()].count("\n"), "stop phrase", match[0])


def _summary_departures(name: str, tree: ast.Module) -> Iterator[Departure]:
    """Yield docstrings that open with a relative word, and long first lines of public ones."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if not text:
            continue
        line, first = node.body[0].lineno, text.splitlines()[0]
        if OPENING.match(first):
            yield Departure(name, line, "relative opening", first)
        private = getattr(node, "name", "module").startswith("_")
        if not private and len(first.split()) > MAX_SUMMARY_WORDS:
            yield Departure(name, line, f"summary of {len(first.split())} words", first)


def _message_departures(name: str, tree: ast.Module, documented: set[int]) -> Iterator[Departure]:
    """Yield phrases of the stop list in strings that are sentences."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in documented:
            sentence = len(node.value.split()) > 2
            for match in STOP_PHRASES.finditer(node.value) if sentence else ():
                yield Departure(name, node.lineno, "stop phrase in a message", match[0])


def _name_departures(name: str, tree: ast.Module) -> Iterator[Departure]:
    """Yield names that a file defines and that say too little or speak in metaphors."""
    stem = Path(name).stem
    for line, kind, found in [(1, "file", stem), *_defined(tree)]:
        if found in FIXED_NAMES.get(name, ()):
            continue
        bare = found.strip("_").lower()
        if bare in STOP_NAMES or STOP_WORDS & set(bare.split("_")):
            yield Departure(name, line, "stop word in a name", found)
        if kind in ("function", "file") and _is_participle(bare):
            yield Departure(name, line, f"participle as a name of a {kind}", found)
        if kind in ("function", "class") and bare in ADVERBS:
            yield Departure(name, line, f"{kind} that says neither action nor result", found)
        if kind == "constant" and (found.strip("_") in VAGUE_CONSTANTS or _is_participle(bare)):
            yield Departure(name, line, "constant that does not say its content", found)
        if kind == "function" and found.startswith("test_") and len(found.split("_")) - 1 > MAX_TEST_NAME_WORDS:
            yield Departure(name, line, f"test name of {len(found.split('_')) - 1} words", found)


def _is_participle(word: str) -> bool:
    return word in PARTICIPLES or (re.fullmatch(r"[a-z]+[^e]ed", word) is not None and word not in _VERBS_IN_ED)


def _defined(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and name of everything that a module defines; properties are values, not functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = {ast.unparse(d).split("(")[0].rpartition(".")[2] for d in node.decorator_list}
            kind = "value" if marks & {"property", "cached_property", "default", "validator"} else "function"
            yield node.lineno, kind, node.name
        elif isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, "value", node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "constant" if node.col_offset == 0 and node.id.isupper() else "value", node.id
    for statement in tree.body:  # several constants of one assignment
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            for name in statement.targets[0].elts[1:]:
                if isinstance(name, ast.Name) and name.id.isupper():
                    yield name.lineno, "constant", name.id


def language_files(paths: list[str]) -> list[Path]:
    """Return the files under the given paths, or all, that the rules are for."""
    roots = [ROOT / path for path in paths] or [ROOT]
    found = sorted({f for root in roots for f in ([root] if root.is_file() else root.rglob("*"))})
    return [path for path in found if path.suffix in (".py", ".md", ".cuts") and _is_own(path.relative_to(ROOT))]


def _is_own(path: Path) -> bool:
    """Return whether a file is written by people: neither hidden, nor built, nor quoting departures."""
    foreign = any(part.startswith(".") or part.endswith(".egg-info") for part in path.parts)
    return not foreign and path.parts[0] not in ("build", "dist", "site") and str(path) not in (*SAMPLES, *BUILT)


def main() -> int:
    """Print every departure; return 1 where there is one."""
    found = [each for path in language_files(sys.argv[1:]) for each in departures(path)]
    print(*found, sep="\n")
    print(f"{len(found)} departures", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
