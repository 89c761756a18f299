"""Promises of docstrings: raised errors and named modules.

A function that raises an error of ours says so, and named modules exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cuts.docs.make_modules import ROOT, modules

MODULES = modules()


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


@cache
def error_kinds() -> set[str]:
    """Return the names of `CutsError` and of all its subclasses."""
    classes = [n for m in MODULES for n in ast.walk(tree(m)) if isinstance(n, ast.ClassDef)]
    kinds, before = {"CutsError"}, 0
    while len(kinds) > before:
        before = len(kinds)
        kinds |= {c.name for c in classes if kinds & {b.id for b in c.bases if isinstance(b, ast.Name)}}
    return kinds


def own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield nodes of a function's own body, without inner functions and classes."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            left.extend(ast.iter_child_nodes(node))


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield public functions, and those of public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node.body)
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def raised_errors(function: ast.FunctionDef) -> set[str]:
    """Return the names of the errors that a function raises itself."""
    found = [node.exc for node in own(function) if isinstance(node, ast.Raise) and node.exc is not None]
    made = [error.func if isinstance(error, ast.Call) else error for error in found]
    return {error.id for error in made if isinstance(error, ast.Name)}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_public_function_that_raises_says_so(module: Path) -> None:
    silent = {
        f"{function.name} (line {function.lineno})": missing
        for function in public(tree(module).body)
        if (
            missing := {
                n
                for n in raised_errors(function) & error_kinds()
                if f"`{n}`" not in (ast.get_docstring(function) or "")
            }
        )
    }
    assert silent == {}


#: Packages: possible beginnings of a dotted name in a docstring.
ROOMS = {module.parts[0] for module in MODULES if len(module.parts) > 1}
PLACES = {".".join(module.with_suffix("").parts).removesuffix(".__init__"): module for module in MODULES}


def test_errors_have_one_family() -> None:
    assert {"CutsError", "GraphError", "ParseError", "PlanError", "UsageError"} < error_kinds()


def exists(name: str) -> bool:
    """Return whether a dotted name is a module or its member.

    Members are definitions and exports.
    """
    place, _, inner = name.rpartition(".")
    if name in PLACES or place not in PLACES:
        return name in PLACES
    text = (ROOT / PLACES[place]).read_text()
    return re.search(rf"^(?:def |class | {{4,8}}|.* import .*)?{inner}\b", text, re.MULTILINE) is not None


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_that_a_docstring_names_exist(module: Path) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(n) or "" for n in ast.walk(tree(module)) if isinstance(n, documented)]
    named = {name for text in texts for name in re.findall(r"`((?:\w+\.)+\w+)`", text) if name.split(".")[0] in ROOMS}
    assert sorted(name for name in named if not exists(name)) == []


@pytest.mark.parametrize("package", [m for m in MODULES if m.name == "__init__.py"], ids=str)
def test_a_package_says_what_its_room_is_for(package: Path) -> None:
    assert len((ast.get_docstring(tree(package)) or "").split()) >= 8


@pytest.mark.parametrize("module", sorted(MODULES), ids=str)
def test_paths_that_a_module_names_exist(module: Path) -> None:
    """Paths begin at the root, in `passes/` or beside the module."""
    named = set(re.findall(r"(?<![\w/])(?:[a-z_]+/)+[a-z_]+\.py\b", (ROOT / module).read_text(encoding="utf-8")))
    places = [ROOT, ROOT / "passes", *(ROOT / parent for parent in module.parents)]
    assert [path for path in sorted(named) if not any((place / path).is_file() for place in places)] == []
