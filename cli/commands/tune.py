"""`cuts tune`: selects kernels by measured times on the target's device."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...search import STRATEGIES, Settings
from ..compilation import run_tuned
from ..options import add_compile_options, positive


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `cuts tune`."""
    search = add_compile_options(parser)
    learning, places = parser.add_argument_group("learned order"), parser.add_argument_group("devices and workers")
    usual = Settings().strategy
    search.add_argument(
        "--strategy", choices=tuple(STRATEGIES),
        help=f"how to search (default {usual}); kernels that were searched before are searched anew",
    )  # fmt: skip
    search.add_argument(
        "--unaided",
        action="store_true",
        help="search without the model: begin anywhere, discard nothing (says what its help is worth)",
    )
    learning.add_argument(
        "--learn",
        action="store_true",
        help="learn from what was measured on this machine, and search in that order where it beats the model's on "
        "operations left out; without a MODEL only say whether it does",
    )
    learning.add_argument(
        "--recorded", action="append", default=[], metavar="FILE", help="recorded spaces to learn from too"
    )
    search.add_argument(
        "--trials", type=positive(int), metavar="N", help="candidates to try of each kernel at most (default 40)"
    )
    search.add_argument(
        "--audit",
        type=positive(int),
        metavar="N",
        help="time N random points of every kernel too: did pruning lose the winner?",
    )
    search.add_argument(
        "--further", action="store_true", help="search on where the final plan is known, from a pack for example"
    )
    search.add_argument(
        "--replay", metavar="FILE", help="search in the results of a tuning database instead of on a device"
    )
    places.add_argument("--devices", metavar="0,1", help="GPUs of this host to search with, which share the kernels")
    places.add_argument(
        "--scheduler", metavar="ADDRESS", help="search with the workers of a Dask scheduler, tcp://HOST:PORT"
    )
    places.add_argument(
        "--workers", type=positive(int), metavar="N", help="processes that build candidates (default one per core)"
    )


def command(arguments: Namespace) -> int:
    """Time candidates of every kernel and write the plan of the fastest."""
    return run_tuned(arguments)
