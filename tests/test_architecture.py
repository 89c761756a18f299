"""What docs/architecture.md promises about the layout: who imports whom, where foreign packages are, and that the wheel is whole."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from cuts.ir.functions import COMBINERS, FUNCTIONS
from cuts.ops import Registry
from cuts.ops.builtins import BUILTINS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOT_SHIPPED = {"tests", "bench", "examples", "docs", "build", "dist"}

#: Folder -> folders of ours that it may import.
LAYERS = {
    "ir": {"ir"},
    "ops": {"ir", "ops"},
    "passes": {"ir", "ops", "passes"},
    "backends": {"ir", "ops", "backends"},
    "search": {"ir", "ops", "passes", "backends", "search"},
    "runtime": {"ir", "backends", "runtime"},
    "frontends": {"ir", "ops", "frontends"},
}
#: Optional package -> modules that wrap it.
WRAPPERS = {
    "onnx": ("frontends/onnx*.py",),
    "onnxruntime": ("runtime/onnx_oracle.py",),
    "pyopencl": ("backends/opencl*.py",),
    "pycuda": ("backends/cuda*.py",),
    "cuda": ("backends/cuda*.py",),
    "torch": ("frontends/torch*.py",),
    "nvmath": ("backends/vendor_cublas.py",),
    "cudnn": ("backends/vendor_cudnn.py",),
}


def shipped() -> Iterator[Path]:
    """Yield the files of the package, relative to the root."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(p.startswith((".", "__pycache__")) or p.endswith(".egg-info") for p in parts)
        if path.is_file() and not hidden and parts[0] not in NOT_SHIPPED:
            yield path.relative_to(ROOT)


MODULES = [path for path in shipped() if path.suffix == ".py"]


def parsed(module: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def imports(module: Path) -> Iterator[tuple[str, bool]]:
    """Yield (top-level name, whether it is ours) of everything a module imports."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = module.parent.parts[: len(module.parent.parts) - node.level + 1]
            target = (*folder, *(node.module or "").split("."))
            names = [target[0]] if target[0] else [alias.name for alias in node.names]
            yield from ((name, True) for name in names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], False
        elif isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] in LAYERS], ids=str)
def test_imports_run_one_way(module: Path) -> None:
    assert {name for name, ours in imports(module) if ours} <= LAYERS[module.parts[0]]


def test_foreign_packages_stay_in_their_wrappers() -> None:
    found = {(name, str(m)) for m in MODULES for name, ours in imports(m) if not ours and name in WRAPPERS}
    strays = [(name, module) for name, module in found if not any(fnmatch(module, pattern) for pattern in WRAPPERS[name])]
    assert not strays


def test_no_pass_names_a_target() -> None:
    names = ("cuda", "opencl", "pocl", "nvidia", "sm_90", "h200", "v100", "rtx")
    for module in (m for m in MODULES if m.parts[0] == "passes"):
        constants = [n.value for n in ast.walk(parsed(module)) if isinstance(n, ast.Constant)]
        assert not [c for c in constants if isinstance(c, str) and c.lower().split(":")[0] in names], module


#: Words of the compiler that are names of operations too, and what they mean there.
OTHER_MEANINGS = {"tile": "a block of elements", "pad": "elements between rows of shared memory", "split": "a pass"}


def test_nothing_asks_for_the_name_of_an_operation() -> None:
    shared = {*FUNCTIONS, *BUILTINS, *COMBINERS, *OTHER_MEANINGS}  # what expressions and schedules are made of
    names = set(Registry.builtin()) - shared
    for module in (m for m in MODULES if m.parts[0] in ("ops", "passes")):
        tree = parsed(module)
        strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert not strings & names, module
        compared = [n for n in ast.walk(tree) if isinstance(n, ast.Compare) and module.parts[0] == "passes"]
        asked = [n for n in compared for side in (n.left, *n.comparators) if isinstance(side, ast.Attribute) and side.attr == "op"]
        assert not [n for n in asked if any(isinstance(inner, ast.Constant) for inner in ast.walk(n))], module


def test_every_package_is_listed() -> None:
    folders = {".".join(("cuts", *m.parent.parts)) for m in MODULES}
    assert folders <= set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_data_file_is_shipped() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    data = [p for p in shipped() if p.suffix != ".py" and (len(p.parts) > 1 or p.name == "py.typed")]
    for path in data:
        package = f"cuts.{path.parts[0]}" if len(path.parts) > 1 else "cuts"
        inside = str(Path(*path.parts[1:])) if len(path.parts) > 1 else path.name
        assert any(fnmatch(inside, pattern) for pattern in patterns.get(package, ())), path
