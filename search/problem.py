"""What is tuned: one distinct kernel on one machine, and the key under which results are kept.

Everything that decides what a measured time means is written into a *description*, a text that people can read; the key
is its SHA-256. So two groups that compute the same share their results, and `cuts cache explain KEY` shows what was
hashed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from attrs import field, frozen

from ..backends.cuda import toolchains
from ..ir import BackendError, FusedGroup, Schedule, Storage, Target, parse_ir, print_ir
from ..passes.fusion import form_text

#: Changed whenever a stored time would no longer mean what it meant: the way of timing, the text forms. Until format 2,
#: no input was in the cache.
FORMAT = 2
#: Formats whose times were longer, and whose schedules hold.
EARLIER = ("1",)


@frozen(eq=False)
class Problem:
    """A group in normal form, where its tensors live, and the machine: what one search finds a schedule for.

    `machine` tells measurements of different machines apart. `label` and `uses` (how often the kernel is launched) are
    for people and for the order of work; they are no part of the key.
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
        work = form_text(self.form) + "".join(f"# {line}\n" for line in _layouts(self.form, self.storages))
        parts = {"format": str(FORMAT), "work": work, "machine": dict(sorted(self.machine.items()))}
        return json.dumps(parts, indent=1, sort_keys=True)

    @key.default
    def _hash(self) -> str:
        return digest(self.description)

    @property
    def work(self) -> str:
        """What is computed, and on which layout; equal on every machine."""
        return str(json.loads(self.description)["work"])  # printing a form takes a hundred times as long


def _layouts(form: FusedGroup, storages: Mapping[str, Storage]) -> Iterator[str]:
    """Yield what is unusual about where tensors live: dense ones that begin a buffer are all alike."""
    for name, storage in sorted(storages.items()):
        if storage.offset or storage.strides != form.tensors[name].strides:
            yield f"{name} at offset {storage.offset} with strides {', '.join(map(str, storage.strides))}"


def machine_of(target: Target) -> dict[str, str]:
    """Return what a measured time depends on besides the program: the device, its clock, and the compiler."""
    facts = {"target": target.name, "dialect": target.dialect, "arch": target.arch, "clock": f"{target.clock:g}"}
    if target.dialect == "cuda":
        tools = toolchains()
        return facts | {"compiler": f"{tools[0].name} {tools[0].version}" if tools else "none"}
    try:
        from ..backends.opencl import choose_device

        return facts | {"device": choose_device().text}
    except BackendError:
        return facts | {"device": "none"}


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def trial_key(problem: str, schedule: str) -> str:
    """Return the key of one measured point: that of its problem and the text of its schedule."""
    return digest(f"{problem}\n{schedule}")


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule as text that `read_schedule` understands."""
    return print_ir(schedule)


def read_schedule(text: str) -> Schedule:
    """Read a schedule from its text."""
    found = parse_ir(text, "<tuning database>")
    assert isinstance(found, Schedule), "the database keeps schedules"
    return found
