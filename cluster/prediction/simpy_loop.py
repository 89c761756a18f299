"""SimPy's event loop, which the simulation of schedules runs on."""

from __future__ import annotations

from typing import Any

from ...ir import BackendError, install_command


def environment() -> Any:
    """Return a new environment of SimPy.

    Raises `BackendError` where it is not installed.
    """
    try:
        import simpy
    except ImportError as error:
        raise BackendError("simulating a plan needs SimPy", hint=install_command("cluster")) from error
    return simpy.Environment()
