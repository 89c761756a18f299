"""`cuts tune`: compile a model by measured times."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from . import console
from .backends.targets import find_target
from .cli_compile import run_compile
from .ir.errors import UsageError
from .search.session import tuning_session
from .search.settings import Settings


def tune_command(arguments: Namespace) -> int:
    """Time candidates of every kernel on the target's device and write the plan of the fastest."""
    target = find_target(arguments.target)
    if target.dialect == "reference":
        raise UsageError("target 'reference' has no kernels to tune", hint="use --target opencl or cuda")
    settings = Settings(
        strategy=getattr(arguments, "strategy", "rank"),
        most=getattr(arguments, "trials", None) or Settings().most,
        seed=arguments.seed,
        libraries=getattr(arguments, "libraries", False),
    )
    with tuning_session(
        target,
        budget=arguments.budget,
        frozen=arguments.frozen,
        settings=settings,
        workers=getattr(arguments, "workers", None),
        evaluate=arguments.mode == "mixed",
        audit=getattr(arguments, "audit", None) or 0,
        replay=Path(arguments.replay) if getattr(arguments, "replay", None) else None,
        quiet=False,
        notice=console.note,
    ) as selector:
        return run_compile(arguments, selector)
