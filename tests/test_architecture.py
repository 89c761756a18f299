"""Promises of docs/architecture.md about the layout.

They concern imports, places of foreign packages, and the completeness of the wheel.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from cuts.ir.functions import COMBINERS, FUNCTIONS
from cuts.ops import Registry
from cuts.ops.language.evaluation.builtins import BUILTINS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOT_SHIPPED = {"tests", "bench", "examples", "docs", "build", "dist"}

#: Room -> rooms of ours that it may import, besides its own. A room is a package; a package inside another one is
#: named by its path.
LAYERS = {
    "ir": set(),
    "store": {"ir"},
    "ops": {"ir"},
    "numerics": {"ir", "ops"},
    "passes": {"ir", "ops", "numerics"},
    "backends": {"ir", "store"},
    "search": {"ir", "ops", "numerics", "passes", "backends", "store"},
    "runtime": {"ir", "store", "numerics", "backends"},
    "frontends": {"ir", "ops"},
    "compile": {
        "ir",
        "store",
        "ops",
        "numerics",
        "passes",
        "backends",
        "search",
        "runtime",
        "frontends",
        "latency",
    },
    "training": {"ir", "ops", "passes", "backends", "runtime", "frontends", "compile"},
    "latency": {"ir", "backends", "store"},
    "cluster": {"ir", "ops", "passes", "backends", "runtime", "compile"},
    "cli": {
        "ir",
        "store",
        "ops",
        "numerics",
        "passes",
        "backends",
        "search",
        "runtime",
        "frontends",
        "compile",
        "training",
        "latency",
        "cluster",
    },
}
#: Package inside a package -> its sisters that it may import.
SISTERS = {
    "ir/affine": set(),
    "ir/dfg": {"affine"},
    "ir/graph": set(),
    "ir/kernel": {"affine", "dfg", "machine"},
    "ir/machine": {"affine"},
    "ir/compiled": {"graph", "machine"},
    "ir/text": {"affine", "dfg", "graph", "kernel", "machine", "compiled"},
    "ir/verify": {"affine", "dfg", "graph", "kernel", "machine"},
    "ops/language": set(),
    "ops/gradient": {"language"},
    "ops/symbolic": {"gradient", "language"},
    "passes/statements": set(),
    "passes/packing": {"statements"},
    "passes/graph": {"packing"},
    "passes/fusion": {"packing", "statements"},
    "passes/split": {"fusion", "geometry"},
    "passes/geometry": set(),
    "passes/lowering": {"geometry"},
    "passes/instructions": set(),
    "passes/model": {"geometry", "lowering"},
    "passes/schedule": {"geometry", "model", "lowering", "fusion"},
    "passes/layout": {"schedule", "fusion"},
    "passes/costs": {"fusion", "geometry", "layout", "model", "schedule", "split"},
    "search/tasks": set(),
    "search/trace": set(),
    "search/database": {"tasks"},
    "search/processes": {"trace"},
    "search/learned": {"database", "tasks"},
    "search/building": {"learned", "processes", "tasks"},
    "search/strategies": {"building", "learned", "processes", "tasks"},
    "search/measurement": {"building", "database", "processes", "tasks", "trace"},
    "search/tuner": {
        "building",
        "database",
        "learned",
        "measurement",
        "processes",
        "strategies",
        "tasks",
        "trace",
    },
    "search/speculation": {"building", "strategies", "tasks", "tuner"},
    "search/analysis": {"building", "tasks", "tuner"},
    "search/remote": {"building", "database", "measurement", "tasks", "trace", "tuner"},
    "backends/source": set(),
    "backends/native": set(),
    "backends/opencl": set(),
    "backends/library": set(),
    "backends/ceilings": {"source"},
    "backends/compilers": {"library"},
    "backends/cuda": {"ceilings", "compilers", "library", "native", "source"},
    "frontends/onnx": set(),
    "frontends/torch": set(),
    "latency/predictors": set(),
    "latency/profiling": {"predictors"},
    "latency/compiled_kernels": {"predictors"},
    "passes/partitioning": {"costs", "fusion", "graph", "layout", "schedule", "split"},
    "passes/inspection": {"fusion", "lowering", "schedule"},
    "cluster/plans": set(),
    "cluster/graphs": {"plans"},
    "cluster/storage": {"graphs", "plans"},
    "cluster/prediction": {"plans"},
    "cluster/planning": {"plans", "prediction"},
    "cluster/running": {"graphs", "plans", "prediction", "storage"},
    "compile/selection": set(),
    "compile/dynamic": set(),
    "compile/staged": set(),
    "runtime/files": set(),
    "runtime/placement": set(),
    "runtime/native": {"placement"},
    "runtime/report": {"files"},
    "cli/output": set(),
    "cli/commands": {"output"},
    "cli/machines": {"output"},
    "cli/inspection": {"output"},
}
#: Most lines of a file, and those that files are written for.
MAX_FILE_LINES, AIMED_FILE_LINES = 400, 250
#: Files with more lines -> why they have no seam.
LONG_FILES = {
    "frontends/onnx/importer.py": "one walk over a model, whose steps all change the same tables",
    "ir/affine/index.py": "sums, quotients and remainders simplify each other into one canonical form",
    "ops/gradient/derivatives.py": "a table of one derivative a function",
    "ops/reference.py": "a program's run and the box that it evaluates refer to each other",
    "passes/fusion/legality.py": "the three levels of fusion refuse for the same reasons",
    "passes/lowering/races.py": "one walk over a kernel's items, whose steps all change the same spans",
}
#: Files beyond the aim: they may become fewer.
MAX_FILES_BEYOND_AIM = 115
#: An entry of the command line that lies where Python looks for it.
ENTRIES = {Path("compile/__main__.py")}
#: Packages whose modules only lead to others: `cuts` itself.
ENTRANCES = {Path()}
#: Optional package -> modules that wrap it.
WRAPPERS = {
    "onnx": ("frontends/onnx/*.py",),
    "onnxruntime": ("runtime/onnx_oracle.py",),
    "pyopencl": ("backends/opencl/*.py",),
    "pycuda": ("backends/cuda/*.py",),
    "cuda": ("backends/cuda/*.py", "backends/compilers/*.py"),
    "torch": ("frontends/torch/*.py", "cluster/torch*.py", "search/strategies/policy.py"),
    "distributed": ("search/remote/dask_workers.py",),
    "sklearn": ("search/strategies/surrogate.py", "search/learned/residual.py", "latency/*.py"),
    "setuptools": ("backends/native/wheel_commands.py",),
    "simpy": ("cluster/prediction/simpy_loop.py",),
    "nvmath": ("backends/library/cublas.py",),
    "cudnn": ("backends/library/cudnn.py",),
}


def shipped_files() -> Iterator[Path]:
    """Yield the files of the package, relative to the root."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(p.startswith((".", "__pycache__")) or p.endswith(".egg-info") for p in parts)
        if path.is_file() and not hidden and parts[0] not in NOT_SHIPPED:
            yield path.relative_to(ROOT)


MODULES = [path for path in shipped_files() if path.suffix == ".py"]


def parse_module(module: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def foreign_imports(module: Path) -> Iterator[str]:
    """Yield the top-level names of the foreign packages that a module imports."""
    for node in ast.walk(parse_module(module)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)


@cache
def faces() -> dict[Path, frozenset[str]]:
    """Return the names that each package's `__init__.py` hands out."""
    return {
        module.parent: frozenset(
            alias.name
            for node in ast.walk(parse_module(module))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )
        for module in MODULES
        if module.name == "__init__.py"
    }


def own_imports(module: Path) -> Iterator[Path]:
    """Yield the project's files that a module imports.

    Imports inside functions count; a package stands for its `__init__.py`.
    """
    for node in ast.walk(parse_module(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = Path(*module.parent.parts[: len(module.parent.parts) - node.level + 1])
            base = folder.joinpath(*(node.module or "").split(".")) if node.module else folder
            if (ROOT / base.with_suffix(".py")).is_file():
                yield base.with_suffix(".py")
                continue
            for alias in node.names:
                inner = base / alias.name
                if base != module.parent and alias.name in faces().get(base, ()):
                    yield base / "__init__.py"
                    continue
                if (ROOT / inner.with_suffix(".py")).is_file():
                    yield inner.with_suffix(".py")
                else:
                    yield (inner if (ROOT / inner / "__init__.py").is_file() else base) / "__init__.py"


@cache
def imports() -> dict[Path, set[Path]]:
    """Return the files of ours that each module imports."""
    return {module: set(own_imports(module)) - {module} for module in MODULES}


def test_imports_run_one_way() -> None:
    for module in (m for m in MODULES if m.parts[0] in LAYERS and m not in ENTRIES):
        room = module.parts[0]
        assert {target.parts[0] for target in imports()[module]} - {room} <= LAYERS[room], module


def test_sister_packages_import_one_way() -> None:
    for module in (m for m in MODULES if "/".join(m.parts[:2]) in SISTERS):
        allowed = SISTERS["/".join(module.parts[:2])] | {module.parts[1]}
        targets = [t for t in imports()[module] if t.parts[0] == module.parts[0] and len(t.parts) > 2]
        assert {t.parts[1] for t in targets} <= allowed, module


def test_every_room_is_in_the_table() -> None:
    assert {m.parts[0] for m in MODULES if len(m.parts) > 1} - {"spec"} == set(LAYERS)


def test_no_files_import_each_other_in_a_circle() -> None:
    left = {module: set(targets) for module, targets in imports().items()}
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    assert not left


def test_outsiders_import_from_the_face_of_a_package() -> None:
    """A module of another package is reached through that package's `__init__.py`,
    one further up the same path directly.
    """
    for module in (m for m in MODULES if m.name != "__init__.py"):
        own = module.parent.parts
        inner = [
            t for t in imports()[module] if t.name != "__init__.py" and own[: len(t.parent.parts)] != t.parent.parts
        ]
        assert not inner, module


@pytest.mark.parametrize("package", sorted({m.parent for m in MODULES}), ids=str)
def test_a_package_has_4_to_15_modules(package: Path) -> None:
    count = sum(m.parent == package for m in MODULES)
    assert (1 if package in ENTRANCES else 4) <= count <= 15


def test_files_are_short() -> None:
    lines = {str(m): (ROOT / m).read_text(encoding="utf-8").count("\n") for m in MODULES}
    assert {m for m, count in lines.items() if count > MAX_FILE_LINES} == set(LONG_FILES)
    assert sum(count > AIMED_FILE_LINES for count in lines.values()) <= MAX_FILES_BEYOND_AIM


def test_a_class_name_means_one_thing() -> None:
    """Public class names are unique.

    Those of the syntax tree are always written with their module.
    """
    places: dict[str, set[str]] = {}
    for module in (m for m in [*MODULES, *_benches()] if m != Path("ops/language/text/syntax.py")):
        for node in parse_module(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(str(module))
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("folder", ["examples", "bench"])
def test_no_script_hides_a_module_of_python(folder: str) -> None:
    """A script's folder comes first where Python looks for modules."""
    assert not {path.stem for path in (ROOT / folder).glob("*.py")} & sys.stdlib_module_names


def _benches() -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / "bench").rglob("*.py"))]


def test_foreign_packages_stay_in_their_wrappers() -> None:
    found = {(name, str(m)) for m in MODULES for name in foreign_imports(m) if name in WRAPPERS}
    strays = [
        (name, module) for name, module in found if not any(fnmatch(module, pattern) for pattern in WRAPPERS[name])
    ]
    assert not strays


def test_no_pass_names_a_target() -> None:
    names = ("cuda", "opencl", "pocl", "nvidia", "sm_90", "h200", "v100", "rtx")
    for module in (m for m in MODULES if m.parts[0] == "passes"):
        constants = [n.value for n in ast.walk(parse_module(module)) if isinstance(n, ast.Constant)]
        assert not [c for c in constants if isinstance(c, str) and c.lower().split(":")[0] in names], module


def test_what_differs_between_dialects_is_in_their_table() -> None:
    words = (
        "cuda",
        "opencl",
        "__global",
        "__local",
        "__shared__",
        "__syncthreads",
        "barrier(",
        "blockIdx",
        "get_local_id",
        "float4",
    )
    for name in ("emit", "phase", "nodes", "scope", "ctext"):
        (module,) = [m for m in MODULES if m.parts[0] == "backends" and m.stem == name]
        tree = parse_module(module)
        texts = {
            n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        } - documentation(tree)
        assert not [(text, word) for text in texts for word in words if word in text], module


def documentation(tree: ast.Module) -> set[str]:
    """Return the docstrings of a module."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return {ast.get_docstring(n, clean=False) or "" for n in ast.walk(tree) if isinstance(n, kinds)}


#: Words of the compiler that are names of operations too, and their meaning there.
OTHER_MEANINGS = {"tile": "a block of elements", "pad": "elements between rows of shared memory", "split": "a pass"}


def test_nothing_asks_for_the_name_of_an_operation() -> None:
    shared = {*FUNCTIONS, *BUILTINS, *COMBINERS, *OTHER_MEANINGS}  # parts of expressions and schedules
    names = set(Registry.builtin()) - shared
    for module in (m for m in MODULES if m.parts[0] in ("ops", "passes")):
        tree = parse_module(module)
        strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert not strings & names, module
        compared = [n for n in ast.walk(tree) if isinstance(n, ast.Compare) and module.parts[0] == "passes"]
        asked = [
            n
            for n in compared
            for side in (n.left, *n.comparators)
            if isinstance(side, ast.Attribute) and side.attr == "op"
        ]
        assert not [n for n in asked if any(isinstance(inner, ast.Constant) for inner in ast.walk(n))], module


def test_every_package_is_listed() -> None:
    folders = {".".join(("cuts", *m.parent.parts)) for m in [*MODULES, *_benches()]}
    assert folders <= set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_data_file_is_shipped() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    listed = PROJECT["tool"]["setuptools"]["packages"]
    packages = {Path(*name.split(".")[1:]) for name in listed}
    data = [p for p in shipped_files() if p.suffix != ".py" and (len(p.parts) > 1 or p.name == "py.typed")]
    for path in data:
        home = next(folder for folder in path.parents if folder in packages)
        name = ".".join(("cuts", *home.parts))
        assert any(fnmatch(path.relative_to(home).as_posix(), pattern) for pattern in patterns.get(name, ())), path
