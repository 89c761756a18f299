"""Check of a release: the wheel and the source distribution are complete, and the wheel works without the checkout.

    python .ci/release.py                   # with this Python
    python .ci/release.py PYTHON PYTHON     # with the lowest and the highest one

Both are built from the tracked files. Each Python gets a fresh environment with the wheel and OpenCL, in which every
command prints its help, and a model is compiled, verified and run; with the last one it is inspected, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[1]
#: Top folders and files of the checkout that the wheel leaves out, and those that the source distribution does.
NOT_IN_WHEEL = re.compile(
    r"(tests|docs|examples|bench/results|\.[^/]*)(/|$)|[^/]*\.(md|toml|yml|in)$|LICENSE$|(.*/)?\.[^/]*$"
)
NOT_IN_SOURCE = re.compile(r"(tests|bench/results|\.ci)/|(.*/)?\.[^/]*$")
#: The library that a wheel for a platform has, beside the tracked files.
RUNNER = "backends/native/libcuts_run.so"
#: A user's first commands, in a folder with `examples/rms.*`.
COMMANDS = (
    "cuts doctor",
    "cuts compile rms.json --spec rms.cuts --target opencl --verify -o rms.plan",
    "cuts run rms.plan --iters 2",
    "cuts export rms.plan",
    "cuts run rms.cutsplan --iters 2 --sessions 2",
)
#: Later commands, which no Python changes.
MORE_COMMANDS = (
    "cuts inspect rms.json --spec rms.cuts",
    "cuts device",
    "cuts ops softmax",
    "cuts verify rms.plan",
    "cuts explain rms.plan",
    "cuts export rms.plan --as c",
    "cuts export rms.plan --as triton",
    "cuts compare rms.plan rms.plan",
    "cuts bisect rms.json --spec rms.cuts --target opencl",
    "cuts cache info",
    "cuts compile rms.json --spec rms.cuts --target cuda:sm_90 -o cuda.plan",
    "python -m cuts.compile rms.json --spec rms.cuts --target reference --verify -o reference.plan",
    "python -m cuts.bench --help",
)
#: Prints the help of the commands that are its arguments, in one process.
HELPS = """
import sys
from cuts.cli import main

for name in sys.argv[1:]:
    try:
        main([name, "--help"])
    except SystemExit as end:
        if end.code:
            raise
"""


def call(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command in a folder and return its output; end with it where the command fails."""
    own = {"PATH", "HOME", "LANG", "TMPDIR"} | {name for name in os.environ if name.startswith(("PIP_", "HTTP", "SSL"))}
    environment = {name: value for name, value in os.environ.items() if name in own} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_environment(python: str, folder: Path, *packages: str) -> Path:
    """Return the folder of programs of a fresh environment with packages."""
    call([python, "-m", "venv", "--without-pip", str(folder)], ROOT)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check"]
    call([*pip, "install", "--quiet", "--no-compile", *packages], ROOT)
    return folder / "bin"


def tracked_files() -> list[str]:
    """Return the paths of the tracked files that are there."""
    listed = call(["git", "ls-files", "-z"], ROOT).split("\0")
    return [name for name in listed if name and (ROOT / name).is_file()]


def build(files: list[str], made: Path) -> tuple[Path, Path]:
    """Return the wheel and the source distribution of the tracked files; the wheel is built from the latter."""
    source = made / "source"
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    (source / ".site").mkdir()
    (source / ".site/cuts").symlink_to("..")
    programs = make_environment(sys.executable, made / "builder", "build", "setuptools>=77")
    call([str(programs / "python"), "-m", "build", "--no-isolation", "--outdir", str(made / "dist")], source)
    (wheel,), (archive,) = made.glob("dist/*.whl"), made.glob("dist/*.tar.gz")
    return wheel, archive


def check_contents(files: list[str], wheel: Path, archive: Path) -> None:
    """Compare the files of both with the tracked ones; end where one is missing or is a test."""
    with zipfile.ZipFile(wheel) as opened:
        found = {name.removeprefix("cuts/") for name in opened.namelist() if name.startswith("cuts/")}
    expected = {name for name in files if not NOT_IN_WHEEL.match(name)}
    built = set() if wheel.stem.endswith("none-any") else {RUNNER}
    report("the wheel", expected | built, found)
    with tarfile.open(archive) as opened:
        paths = [member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()]
    found = {path.removeprefix(".site/cuts/") for path in paths if not path.startswith(".site/cuts.egg-info")}
    found = {path for path in found if "egg-info" not in path} - {"PKG-INFO", "setup.cfg"}
    report("the source distribution", {name for name in files if not NOT_IN_SOURCE.match(name)}, found)


def report(name: str, expected: set[str], found: set[str]) -> None:
    """End with the differences of two sets of files, where there are any."""
    if missing := sorted(expected - found):
        sys.exit(f"release: {name} lacks {', '.join(missing[:10])}: see package-data in pyproject.toml, or MANIFEST.in")
    if more := sorted(found - expected):
        sys.exit(f"release: {name} has {', '.join(more[:10])}, which no release has")


def check_wheel(python: str, wheel: Path, made: Path, commands: tuple[str, ...]) -> None:
    """Run commands of a user in a fresh environment with the wheel."""
    begun, name = monotonic(), re.sub(r"\W+", "-", python)
    programs = make_environment(python, made / name, f"cuts-compiler[opencl] @ {wheel.as_uri()}")
    folder = made / f"work{name}"
    folder.mkdir()
    for example in ("rms.json", "rms.cuts"):
        shutil.copy(ROOT / "examples" / example, folder)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(folder / "cache")}
    version = re.findall(r'^__version__ = "(.*)"$', (ROOT / "__init__.py").read_text("utf-8"), re.M)[0]
    printed = call(["cuts", "--version"], folder, **variables).strip()
    if printed != f"cuts {version}" or f"## [{version}]" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        sys.exit(f"release: the wheel is {printed}, the package {version}; CHANGELOG.md needs a section of it")
    listed = call(["cuts", "--help"], folder, **variables)
    names = re.findall(r"^    (\w+) ", listed, re.M)
    helps = call([str(programs / "python"), "-c", HELPS, *names], folder, **variables)
    if helps.count("usage: cuts ") != len(names):
        sys.exit(f"release: not every command of {', '.join(names)} prints its help:\n{helps}")
    for command in commands:
        call(command.split(), folder, **variables)
    print(f"release: {len(names) + len(commands)} commands, {python}: {monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    """Build, compare, and try with each Python."""
    begun = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made, files = Path(folder), tracked_files()
        wheel, archive = build(files, made)
        check_contents(files, wheel, archive)
        print(f"release: {wheel.name} and {archive.name} are complete: {monotonic() - begun:.0f} s", flush=True)
        *others, last = dict.fromkeys(sys.argv[1:] or [sys.executable])
        for python in others:
            check_wheel(python, wheel, made, COMMANDS)
        check_wheel(last, wheel, made, COMMANDS + MORE_COMMANDS)


if __name__ == "__main__":
    main()
