"""Documents and declarations: line lengths, existing paths, tables of current results."""

from __future__ import annotations

import argparse
import fnmatch
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path

import cuts
import pytest
from attrs import fields as fields_of
from cuts.backends import known_targets, target_aliases
from cuts.backends.native import LAYOUTS
from cuts.bench.paper import PaperTable, read_table, tables_of
from cuts.cli.main import COMMANDS, make_parser
from cuts.cluster.storage.disk import MAX_REQUESTS
from cuts.cluster.storage.layer_files import PAGE
from cuts.docs import make_api, make_c_api, make_results, make_stages, make_tables
from cuts.docs.make_modules import document, modules, purpose
from cuts.docs.make_site import pending
from cuts.ir import DISTRIBUTION, install_command
from cuts.passes.statements.prefix_scan import MAX_LANE_ROW
from cuts.passes.statements.sorts import MAX_SORTED_ROW
from cuts.runtime.files.plan_document import PlanDocument
from cuts.search.tasks.pruning_certificate import MAX_EXACT_POINTS
from cuts.store.eviction import MAX_BYTES

ROOT = Path(__file__).parents[1]
#: Written by scripts, and not kept.
BUILT_DOCUMENTS = {"docs/ops.md", "docs/modules.md"}
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spec/*.md"))
    if path.relative_to(ROOT).as_posix() not in BUILT_DOCUMENTS
)
DECLARATIONS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*/*.cuts"), *ROOT.glob("*/*.lark")))
DATA = ["pyproject.toml", ".ci/run", *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("backends/*/*.toml"))]
#: Documents that scripts write, or that tests compare with the code, entry by entry.
TABLES = {
    "CHANGELOG.md",
    "docs/accuracy.md",
    "docs/glossary.md",
    "docs/results.md",
    "docs/zoo.md",
    *(f"docs/reference/{n}.md" for n in ("c_interface", "cli", "environment", "plan_format", "python_api")),
    *(f"docs/reference/{n}.md" for n in ("stages", "targets")),
}
MAX_PROSE_LINES, MAX_BENCH_LINES, MAX_RESULT_BYTES = 2800, 8600, 3 << 20
WIDTH = 120
VARIABLE = re.compile(r"\bCUTS_[A-Z_]+\b")
#: Folders of the package, and the others of the repository.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
#: Every file, by its path from the root; a document may name a file of a folder that it speaks of by its bare name.
FILES = FOLDERS | {path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*")}
NAMES = {path.rpartition("/")[2] for path in FILES} | {path.name for path in ROOT.iterdir()}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def lines(name: str) -> Iterator[tuple[int, str]]:
    """Yield a file's numbered lines, without listings that tests write.

    Listings have any length.
    """
    printed, before = False, ""
    for number, line in enumerate(read(name).split("\n"), 1):
        if line.startswith("```"):
            printed = before.startswith("<!-- output")
        if not printed and not is_stage(line):
            yield number, line
        before = line


def is_stage(line: str) -> bool:
    """Return whether a line is a row of the table of stages.

    Such a row has a stage's input, output, and place.
    """
    return line.startswith("| ") and line.count(" | ") == 2 and " -> " in line.split(" | ")[1]


@pytest.mark.parametrize("name", [*DOCUMENTS, *DECLARATIONS, *DATA])
def test_lines_fit(name: str) -> None:
    generated = "| " if name in ("docs/results.md", "docs/zoo.md") else "\0"  # rows of its tables have any length
    assert [n for n, line in lines(name) if len(line) > WIDTH and not line.startswith(generated)] == []


def named_paths(text: str) -> Iterator[str]:
    """Yield the paths that a document names.

    These are targets of links, and words in backticks that end like a file or lie in one of our folders.
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
    """Return whether a path is one of a file or folder.

    It starts at the root, the document, or `passes` as in the table of stages; a bare name lies anywhere.
    """
    beside = normpath(f"{document_name}/../{path}")
    if "/" not in path and fnmatch.filter(NAMES, path):
        return True
    return (
        any(
            name in BUILT_DOCUMENTS or fnmatch.filter(FILES, name)
            for name in (path.rstrip("/"), beside, f"passes/{path}")
        )
        or beside in NAMES
    )


#: Files that a reader makes: names of examples.
MADE_FILES = {"specs/00.cuts", "t.cuts", "fuzz.json"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_that_a_document_names_exist(name: str) -> None:
    text = re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)
    named = {path for path in named_paths(text) if path.rpartition("/")[2] not in pending()}
    assert sorted(path for path in named - MADE_FILES if not exists(name, path)) == []


def anchors(name: str) -> set[str]:
    """Return the anchors of a document's headings."""
    text = re.sub(r"^```.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links(name: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the anchor of each link within the repository."""
    text = re.sub(r"^```.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub("`[^`\n]*`", "", text)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield normpath(f"{name}/../{path}") if path else name, anchor


#: Documents that are written later, from the root.
LATER = {f"docs/{path}" for path in pending()}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_of_a_document_resolve(name: str) -> None:
    found = [(path, anchor) for path, anchor in links(name) if path not in LATER | BUILT_DOCUMENTS]
    assert [path for path, _ in found if not (ROOT / path).exists()] == []
    assert [(path, anchor) for path, anchor in found if anchor and anchor not in anchors(path)] == []


def test_each_page_of_the_site_exists() -> None:
    pages = re.findall(r": ([\w/]+\.md)$", read("mkdocs.yml"), flags=re.MULTILINE)
    known = {*DOCUMENTS, *BUILT_DOCUMENTS, *LATER, "docs/reference/language.md"}
    assert [page for page in pages if f"docs/{page}" not in known] == []
    inside = {path for path in DOCUMENTS if path.startswith(("docs/tutorials/", "docs/reference/"))}
    assert sorted(inside - {f"docs/{page}" for page in pages}) == []


def sections(text: str) -> dict[str, str]:
    """Return the texts below the headings of the second level, by heading."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options_in(text: str) -> set[str]:
    """Return the options in the first column of a section's table."""
    rows = re.findall(r"^\| (.*?) \| ", text, flags=re.MULTILINE)
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(rows)))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_option_of_a_command(command: str) -> None:
    found = sections(read("docs/reference/cli.md"))
    own = found[f"`cuts {command}`"]
    shared = [title for title in found if f"#{title.lower().replace(' ', '-')})" in own]
    documented = set().union(*map(options_in, (own, found["All commands"], *(found[title] for title in shared))))
    commands = next(a for a in make_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    options = {option for action in commands.choices[command]._actions for option in action.option_strings}
    assert documented == options


def test_the_reference_has_the_exit_codes() -> None:
    help_text = " ".join(make_parser().format_help().partition("exit codes:")[2].split())
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", read("docs/reference/errors.md"), flags=re.MULTILINE)
    assert [row for row in rows if row[0] != "1" and f"{row[0]} {row[1]}" not in help_text] == []
    assert len(rows) == len(re.findall(r"(?<!\S)\d+(?= )", help_text)) + 1


def test_the_reference_of_python_is_made_from_docstrings() -> None:
    assert sorted(make_api.EXAMPLES) == sorted(cuts.__all__)
    assert read("docs/reference/python_api.md") == make_api.document(), "run python docs/make_api.py"


def test_the_reference_lists_the_stages_in_order() -> None:
    assert read("docs/reference/stages.md") == make_stages.document(), "run python docs/make_stages.py"


def test_the_reference_of_c_follows_the_header() -> None:
    text = make_c_api.HEADER.read_text(encoding="utf-8")
    documented = {make_c_api.name_of(declaration) for _, declaration in make_c_api.entries(text)}
    functions = set(re.findall(r"^CUTS_API .*?(cuts_\w+)\(", text, flags=re.MULTILINE))
    structs = set(re.findall(r"^typedef (?:struct|enum) (\w+) \{", text, flags=re.MULTILINE))
    assert functions | structs == documented - {"CUTS_RUN_VERSION"}
    assert read("docs/reference/c_interface.md") == make_c_api.document(), "run python docs/make_c_api.py"


def test_the_plan_format_has_every_field() -> None:
    folder, packed = read("docs/reference/plan_format.md").split("## Packed plans")
    fields = [field.name for field in fields_of(PlanDocument)]
    assert [name for name in fields if f"`{name}`" not in folder] == []
    assert [name for name in LAYOUTS if f"`{name}`" not in packed] == []


#: Names in the code that begin like variables of the environment: placeholders and a macro of tests.
NO_VARIABLES = {"CUTS_KERNEL_NAME", "CUTS_THREE"}


def test_the_reference_has_every_variable_of_the_environment() -> None:
    code = [path for folder in FOLDERS - {"docs", "build"} for path in (ROOT / folder).rglob("*.py")]
    found = {name for path in (*code, ROOT / ".ci/run") for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    names = {*VARIABLE.findall(make_c_api.HEADER.read_text(encoding="utf-8"))}
    assert found - NO_VARIABLES - names == {*VARIABLE.findall(read("docs/reference/environment.md"))}


def test_the_reference_has_every_target() -> None:
    text = read("docs/reference/targets.md")
    assert [name for name in (*known_targets(), *target_aliases()) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_of_a_document_name_files_that_exist(name: str) -> None:
    commands = re.findall(r"python (?!-m)([\w/]+\.py)", read(name))
    assert [path for path in commands if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_of_a_document_are_accepted(name: str) -> None:
    listings = re.findall(r"^```sh\n(.*?)^```", read(name), flags=re.MULTILINE | re.DOTALL)
    for line in "".join(listings).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["cuts"]:
            make_parser(words[1]).parse_args(words[1:])


def test_every_package_is_in_readme_and_guide() -> None:
    rooms = {module.parent.as_posix() for module in modules()} - {"."}
    whole = [room for room in sorted(rooms) if "/" not in room]
    for document_name in ("docs/architecture.md", "README.md"):
        assert [room for room in whole if f"`{room}/`" not in read(document_name)] == []


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


def test_scripts_of_documents_need_no_pytorch() -> None:
    names = ", ".join(f"cuts.docs.{path.stem}" for path in sorted((ROOT / "docs").glob("make_*.py")))
    code = f"import sys; sys.modules['torch'] = None; import {names}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_are_made_from_the_rows() -> None:
    assert read("docs/results.md") == make_results.document(), "run python docs/make_results.py"


@pytest.mark.parametrize("path", make_tables.documents(), ids=lambda path: path.name)
def test_tables_of_a_document_are_current(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == make_tables.fill_tables(text), "run python docs/make_tables.py"


#: Figures of documents that are constants of the code: they cannot differ.
CONSTANTS_OF_DOCUMENTS = [
    ("docs/architecture.md", f"beyond {MAX_BYTES >> 30} GiB are deleted"),
    ("docs/schedule_space.md", f"up to {MAX_EXACT_POINTS:,} points are counted whole"),
    ("docs/fusion.md", f"Rows beyond {MAX_LANE_ROW:,} elements"),
    ("docs/fusion.md", f"rows of up to {MAX_SORTED_ROW:,}"),
    ("docs/cluster.md", f"{MAX_REQUESTS} requests in flight"),
    ("docs/cluster.md", f"page of {PAGE:,} bytes"),
]


@pytest.mark.parametrize(("name", "words"), CONSTANTS_OF_DOCUMENTS)
def test_figures_of_a_document_are_constants(name: str, words: str) -> None:
    assert words in " ".join(read(name).split())


COMPUTED_TABLES = [
    (document, table)
    for document in ("bigcuts", "latency")
    for table in tables_of(document).values()
    if table.make is not None and (document, table.number) not in make_tables.SLOW_TABLES
]


@pytest.mark.parametrize(("document", "table"), COMPUTED_TABLES, ids=lambda value: getattr(value, "number", value))
def test_rows_of_a_computed_table_are_current(document: str, table: PaperTable) -> None:
    found = make_tables.table_text(document, table)
    assert table.text(read_table(document, table)) == found, f"run python -m cuts.bench paper {document} --again"


def test_written_documents_are_short() -> None:
    listing = re.compile(r"^```.*?^```$\n?", flags=re.DOTALL | re.MULTILINE)
    prose = [make_tables.TABLE.sub("", listing.sub("", read(name))) for name in DOCUMENTS if name not in TABLES]
    assert sum(text.count("\n") for text in prose) <= MAX_PROSE_LINES


def test_measurements_are_small() -> None:
    assert sum(p.read_text(encoding="utf-8").count("\n") for p in ROOT.glob("bench/**/*.py")) <= MAX_BENCH_LINES
    assert sum(p.stat().st_size for p in ROOT.glob("bench/results/**/*") if p.is_file()) <= MAX_RESULT_BYTES


def plain(text: str) -> str:
    """Return the letters and digits: `DefUse`, `def_use`, "def-use" are equal."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_the_code_has_every_term_of_the_glossary() -> None:
    code = [p for folder in FOLDERS - {"tests", "docs", "bench", "build"} for p in (ROOT / folder).rglob("*.py")]
    known = plain(" ".join(f"{path} {path.read_text(encoding='utf-8')}" for path in code))
    rows = re.findall(r"^\| (?!term|--)(.*?) \| .* \| .* \|$", read("docs/glossary.md"), flags=re.MULTILINE)
    terms = [term for row in rows for term in re.split(r", | \(", row.replace(")", ""))]
    assert len(terms) > 120
    assert [term for term in terms if plain(term) not in known] == []


def test_installations_name_the_distribution_and_its_extras() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    extras = set(project["optional-dependencies"])
    assert project["name"] == DISTRIBUTION
    texts = {str(p): p.read_text("utf-8") for p in (*ROOT.rglob("*.py"), *ROOT.rglob("*.md")) if not is_hidden(p)}
    for name, text in texts.items():
        called = re.findall(r"install_command\((\".*?\")\)", text) + re.findall(r"pip install[^\n]*?\[(.*?)\]", text)
        named = {extra.strip("\"' ") for call in called for extra in call.split(",")} - {"EXTRA"}
        assert {extra for extra in named if re.fullmatch(r"\w+", extra)} <= extras, name
        assert not re.search(r"pip install [\"']?cuts(?!-compiler)\b", text), name
    assert install_command("cuda", "onnx") == "pip install 'cuts-compiler[cuda,onnx]'"
    assert install_command() == "pip install cuts-compiler"


def is_hidden(path: Path) -> bool:
    """Return whether a path lies in a hidden folder."""
    return any(part.startswith(".") for part in path.relative_to(ROOT).parts)


def test_the_reference_has_every_extra_of_the_package() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    rows = re.findall(r"^\| (`.*?`) \|", read("docs/reference/environment.md").partition("## Extras")[2], re.M)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(extras)


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", read("CHANGELOG.md"), re.M)
    assert versions[0] == cuts.__version__
