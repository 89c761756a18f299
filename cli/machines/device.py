"""`cuts device`: devices and compilers of this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from attrs import asdict

from ...backends import find_target, known_targets, open_device, target_aliases
from ...backends.ceilings import load_ceilings, measure_ceilings, save_ceilings
from ...backends.compilers import toolchains
from ...ir import BackendError
from ..options import add_json
from ..outline import outline
from ..output import console


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts device`."""
    parser.add_argument("--target", metavar="TARGET", help="show what is known of one target")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the ceilings of the CUDA device, which bounds are made of, and keep them",
    )
    add_json(parser)


def command(arguments: Namespace) -> int:
    """Show devices, compilers and targets, or one target; measure ceilings on request."""
    if arguments.calibrate:
        values = _calibrate(arguments.target or "cuda:device")
    elif arguments.target:
        values = asdict(find_target(arguments.target))
    else:
        values = {
            "devices": _devices(),
            "compilers": [f"{tool.name} {tool.version}" for tool in toolchains()],
            "targets": known_targets(),
            "aliases": target_aliases(),
        }
    if arguments.json:
        console.print_json(values)
        return 0
    print("\n".join(outline(values)))
    return 0


def _calibrate(target: str) -> dict[str, object]:
    """Measure a device and store its ceilings; return their values."""
    device = open_device(find_target(target))
    ceilings = measure_ceilings(device)
    kept = save_ceilings(ceilings)
    return asdict(ceilings) | {"kept": str(kept) if kept else "nowhere: caching is switched off"}


def _devices() -> list[dict[str, object]]:
    found = []
    for name in ("opencl", "cuda:device"):
        try:
            described = open_device(find_target(name)).describe()
            ceilings = load_ceilings(str(described["name"]))
            found.append(described | ({"ceilings": asdict(ceilings)} if ceilings else {}))
        except BackendError as error:
            found.append({"dialect": name.partition(":")[0], "missing": error.message})
    return found
