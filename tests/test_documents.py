"""Documents and declarations: lines that fit, paths that exist, tables that are what the results say."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path

import pytest
from cuts.bench.tools.records import RESULTS, is_stale, markdown, read_rows
from cuts.docs.make_modules import document, modules, purpose

ROOT = Path(__file__).parents[1]
#: Written by scripts, and not kept.
BUILT = {"docs/ops.md", "docs/modules.md"}
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("spec/*.md"))
    if path.relative_to(ROOT).as_posix() not in BUILT
)
DECLARATIONS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*/*.cuts"), *ROOT.glob("*/*.lark")))
DATA = ["pyproject.toml", ".ci/run", *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("backends/*/*.toml"))]
WIDTH = 120
#: Folders of the package, and the others of the repository.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
#: Every file, by its path from the root; a document may name a file of a folder that it speaks of by its bare name.
FILES = FOLDERS | {path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*")}
NAMES = {path.rpartition("/")[2] for path in FILES} | {path.name for path in ROOT.iterdir()}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def lines(name: str) -> Iterator[tuple[int, str]]:
    """Yield a file's numbered lines, without what the compiler printed and what a test writes from the code: these are
    as long as they are.
    """
    quoted = False
    for number, line in enumerate(read(name).split("\n"), 1):
        fence = line.startswith("```")
        quoted = quoted != fence
        if not (name == "README.md" and quoted) and not is_stage(line):
            yield number, line


def is_stage(line: str) -> bool:
    """Whether a line is a row of the table of stages: what a stage makes of what, and where."""
    return line.startswith("| ") and line.count(" | ") == 2 and " -> " in line.split(" | ")[1]


@pytest.mark.parametrize("name", [*DOCUMENTS, *DECLARATIONS, *DATA])
def test_lines_fit(name: str) -> None:
    assert [number for number, line in lines(name) if len(line) > WIDTH] == []


def named_paths(text: str) -> Iterator[str]:
    """Yield what a document names as a path: a link's target, or a word in backticks that ends like a file or lies in
    one of our folders.
    """
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", re.sub("`[^`]*`", "", text)):
        if "://" not in target:
            yield target
    for word in re.findall(r"`([\w./*-]+)(?:: \w+)?`", text):
        first = word.split("/")[0]
        if ("/" in word and first in FOLDERS and "**" not in word) or re.fullmatch(
            r"[\w/-][\w/*-]*\.(py|cuts|lark|toml|md)", word
        ):
            yield word


def exists(document_name: str, path: str) -> bool:
    """Whether a path is one of a file or folder: from the root, from the document, from
    `passes` as the table of stages has it, or, of a bare name, anywhere.
    """
    beside = normpath(f"{document_name}/../{path}")
    if "/" not in path and fnmatch.filter(NAMES, path):
        return True
    return (
        any(name in BUILT or fnmatch.filter(FILES, name) for name in (path.rstrip("/"), beside, f"passes/{path}"))
        or beside in NAMES
    )


#: Files that a reader makes: names of examples.
MADE = {"t.cuts", "fuzz.json"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_that_a_document_names_exist(name: str) -> None:
    text = re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)
    assert sorted(path for path in {*named_paths(text)} - MADE if not exists(name, path)) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_of_a_document_name_files_that_exist(name: str) -> None:
    commands = re.findall(r"python (?!-m)([\w/]+\.py)", read(name))
    assert [path for path in commands if not (ROOT / path).is_file()] == []


def test_every_room_is_in_the_readme_and_in_the_guide() -> None:
    rooms = {module.parent.as_posix() for module in modules()} - {"."}
    assert [room for room in sorted(rooms) if f"`{room}/`" not in read("docs/architecture.md")] == []
    assert [room for room in sorted(rooms) if "/" not in room and f"| `{room}/`" not in read("README.md")] == []


def test_every_module_of_a_frontend_is_in_their_guide() -> None:
    guide = read("docs/frontends.md")
    inside = [module for module in modules() if module.parts[0] == "frontends" and module.name != "__init__.py"]
    assert [module for module in inside if f"{module.name}`" not in guide] == []


@pytest.mark.parametrize("module", modules(), ids=str)
def test_a_module_says_what_it_is_for(module: Path) -> None:
    text = purpose(ROOT / module)
    assert text.endswith("."), text
    assert len(text.split()) >= 3, text


def test_the_list_of_modules_has_every_module() -> None:
    text = document()
    names = [f"`{m.name}`" if m.name != "__init__.py" else f"`{m.parent.as_posix()}/`" for m in modules()[1:]]
    assert [name for name in names if name not in text] == []
    assert [line for line in text.split("\n") if len(line) > WIDTH] == []


def test_the_summary_of_single_operations_is_what_the_results_say() -> None:
    fresh = [row for row in read_rows(RESULTS / "ops.json") if row["precision"] == "fp32" and not is_stale(row)]
    assert not fresh or markdown(fresh).partition("\n\n")[0] in read("docs/performance.md")
