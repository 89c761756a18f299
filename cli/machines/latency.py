"""`cuts latency`: profiles of devices for `cuts predict`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from attrs import asdict

from ...ir import UsageError
from ...latency import known_profiles
from ...latency.profiling import MadeProfile, profile_gpu, profile_kernels
from ..layer_kernels import measure_on
from ..output import console

_ACTIONS = ("profile", "list")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=_ACTIONS, help="measure layers of this machine, or list the known profiles")
    parser.add_argument("--gpu", type=int, metavar="N", help="profile the vendor library on this GPU (default 0)")
    parser.add_argument("--target", metavar="TARGET", help="profile the kernels of cuts on a target's device instead")
    parser.add_argument("--name", default="mine", help="name for `cuts predict --target` (default mine)")
    parser.add_argument("--minutes", type=float, default=8.0, help="end after this (default 8); a later call goes on")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a sentence")


def command(arguments: Namespace) -> int:
    """Make a profile, or list all.

    Raises `UsageError` for a GPU beside a target, a number that is no time, and a device that cannot be profiled.
    """
    if arguments.action == "list":
        found = list(known_profiles())
        console.print_json({"profiles": found}) if arguments.json else print("\n".join(found))
        return 0
    if arguments.target and arguments.gpu is not None:
        raise UsageError("expected --gpu or --target, found both", hint="--target opencl needs no GPU")
    if not 0 < arguments.minutes < 1e5:
        raise UsageError(f"--minutes: expected a number above 0, found {arguments.minutes}")
    made = _profile(arguments)
    if arguments.json:
        console.print_json({name: str(value) for name, value in asdict(made).items()})
    else:
        print(f"{made.layers} layers: cuts predict conv2d N=1 C=64 H=28 K=64..256 R=3 --target {made.name}")
    return 0


def _profile(arguments: Namespace) -> MadeProfile:
    seconds = 60 * arguments.minutes
    if not arguments.target:
        return profile_gpu(arguments.name, arguments.gpu or 0, seconds)
    return profile_kernels(arguments.name, *measure_on(arguments.target), seconds)
