"""What kind of process is busy is told by what processes are called, be workers copies of the asking one or not."""

from __future__ import annotations

import pytest
from cuts.search.copies import Nursery

from ..search.test_twin import said


@pytest.mark.skipif(not Nursery.possible(), reason="processes are copied on Linux only")
@pytest.mark.parametrize("copied", [True, False])
def test_workers_and_what_they_are_copies_of_are_told_apart(copied: bool) -> None:
    lines = said(f"""
from cuts.bench.timelines import ProcessTimes
twin.UNFIT = () if {copied} else ("libc.so",)
made = [child(), child()]
watched = ProcessTimes(os.getpid())
for each in made:
    each.call(60.0, "imported")
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    try:
        watched._look(pid)
    except OSError:  # it has ended
        continue
print(type(nursery._process).__name__, *sorted(watched._kind(pid) for pid in watched.commands))
for each in made:
    each.close()
nursery.close()
""")
    assert lines == [f"{'Twin' if copied else 'Popen'} asking nursery workers workers"]
