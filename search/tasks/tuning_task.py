"""Tuning task: one distinct kernel on one machine, with its key.

All that the meaning of a measured time depends on is written into a *description*, a text for people; the key is its
SHA-256. Two groups with the same computation share their results, and `cuts cache explain KEY` shows the hashed text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from attrs import field, frozen

from ...backends.compilers import toolchains
from ...ir import BackendError, FusedGroup, Schedule, Storage, Target, parse_ir, print_ir, use_former_keywords
from ...store import describe, digest

#: Changes whenever a stored time would no longer mean the same: the way of timing, the text forms.
FORMAT = 2
#: Formats with longer times, whose schedules are still valid.
EARLIER_FORMATS = ("1",)


@frozen(eq=False)
class TuningTask:
    """Group in normal form, the layout of its tensors, and the machine.

    One search finds a schedule for it. `machine` separates measurements of different machines. `label` and `uses`
    (number of launches of the kernel) are for people and for the order of work; they are not part of the key.
    """

    form: FusedGroup
    storages: Mapping[str, Storage]
    target: Target
    machine: Mapping[str, str]
    label: str = ""
    uses: int = 1
    description: str = field(init=False, repr=False)
    key: str = field(init=False)

    @description.default
    def _describe(self) -> str:
        from ...passes.fusion import form_text

        work = form_text(self.form) + "".join(f"# {line}\n" for line in _layouts(self.form, self.storages))
        parts = {"format": str(FORMAT), "work": work, "machine": dict(sorted(self.machine.items()))}
        return describe(parts)

    @key.default
    def _hash(self) -> str:
        return digest(self.description)

    @property
    def work(self) -> str:
        """Computation and memory layout as text; equal on every machine."""
        return str(json.loads(self.description)["work"])  # printing a form takes a hundred times as long


def _layouts(form: FusedGroup, storages: Mapping[str, Storage]) -> Iterator[str]:
    """Yield unusual memory layouts: offsets, and strides that are not dense."""
    for name, storage in sorted(storages.items()):
        if storage.offset or storage.strides != form.tensors[name].strides:
            yield f"{name} at offset {storage.offset} with strides {', '.join(map(str, storage.strides))}"


def machine_of(target: Target) -> dict[str, str]:
    """Return the machine's facts that times depend on: device, clock, compiler."""
    facts = {"target": target.name, "dialect": target.dialect, "arch": target.arch, "clock": f"{target.clock:g}"}
    facts |= {"policy": "batch-invariant"} if target.invariant else {}
    if target.dialect == "cuda":
        tools = toolchains()
        return facts | {"compiler": f"{tools[0].name} {tools[0].version}" if tools else "none"}
    try:
        from ...backends.opencl import choose_device

        return facts | {"device": choose_device().text}
    except BackendError:
        return facts | {"device": "none"}


def measurement_key(problem: str, schedule: str) -> str:
    """Return the digest of a task's key and a schedule."""
    return digest(f"{problem}\n{use_former_keywords(schedule)}")


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule as text for `read_schedule`."""
    return print_ir(schedule)


def read_schedule(text: str) -> Schedule:
    """Return the schedule of a text."""
    found = parse_ir(text, "<tuning database>")
    assert isinstance(found, Schedule), "the database keeps schedules"
    return found
