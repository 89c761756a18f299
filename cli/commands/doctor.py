"""`cuts doctor`: the installation, its missing packages, devices and caches."""

from __future__ import annotations

import platform
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

from ...backends import choose_target, find_target, open_device
from ...backends.compilers import toolchains
from ...backends.native import library_origin
from ...ir import BackendError
from ..extras import Extra, find_extras
from ..options import add_json
from ..outline import outline
from ..output import console
from .cache import cache_info

#: Devices of this machine, by the names of their targets.
_DEVICES = {"processor": "opencl", "GPU": "cuda:device"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts doctor`."""
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show the installation, its missing packages, and the commands that bring them."""
    extras, choice = find_extras(), choose_target()
    values: dict[str, Any] = {
        "cuts": import_module(__package__.partition(".")[0]).__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "folder": str(Path(__file__).parents[2]),
        "compilers": [f"{tool.name} {tool.version}" for tool in toolchains()],
        "libcuts_run": library_origin() or "none: install gcc",
        "devices": {name: _device(target) for name, target in _DEVICES.items()},
        "target": choice.name,
        "note": choice.note,
        "cache": cache_info(),
    }
    if arguments.json:
        console.print_json(values | {"extras": {extra.name: _values(extra) for extra in extras}})
        return 0
    values["target"] = f"{choice.name} (without --target)"
    del values["note"]
    print("\n".join(outline(values)))
    screen = console.output_console()
    screen.print(console.table("extras", ["extra", "for", "installed", "missing"], [_row(extra) for extra in extras]))
    for extra in extras:
        if extra.missing:
            screen.print(f"{extra.command}  # {extra.purpose}", markup=False, soft_wrap=True)
    if choice.note:
        console.note(choice.note)
    return 0


def _device(name: str) -> str:
    """Return the name of the device of a target, or the reason why there is none."""
    try:
        return str(open_device(find_target(name)).describe()["name"])
    except BackendError as error:
        return f"none: {error}"


def _values(extra: Extra) -> dict[str, object]:
    return {
        "purpose": extra.purpose,
        "installed": extra.installed,
        "missing": extra.missing,
        "command": extra.command,
    }


def _row(extra: Extra) -> list[object]:
    return [extra.name, extra.purpose, ", ".join(extra.installed) or "-", ", ".join(extra.missing) or "-"]
