"""Tasks distributed to places.

A place that is lost, hangs, is wrong or is of another version costs its own work, and the winners are those of an
undisturbed search.
"""

from __future__ import annotations

import importlib.util
import multiprocessing

import pytest
from attrs import evolve
from cuts.ir.errors import BackendError, UsageError
from cuts.search.database import Database
from cuts.search.processes.child import serve
from cuts.search.remote import RemoteTuningLoop
from cuts.search.remote.share_out import MAX_ATTEMPTS, UnitAnswer
from cuts.search.remote.unit import SearchPlace, place_here
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.tuner import Tuner

from .fakes import OPENCL, FakeBench, Inline, by_threads
from .hosts import PROBLEMS, SHORT_SEARCH, Hosts, made_up, results, tune_problems

needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is not installed")


@pytest.fixture(scope="module")
def undisturbed_results() -> tuple[list[tuple[str, float]], list[int]]:
    database = Database(None)
    tune_problems(None, PROBLEMS, database, []).run(PROBLEMS, SHORT_SEARCH)
    return results(database, PROBLEMS), [len(database.measurements(p)) for p in PROBLEMS]


@pytest.mark.parametrize("seed", range(6))
def test_randomly_lost_hosts_change_no_winner(
    undisturbed_results: tuple[list[tuple[str, float]], list[int]], seed: int
) -> None:
    database, hosts, notes = Database(None), Hosts(4, lost=0.5, seed=seed), list[str]()
    tune_problems(hosts, PROBLEMS, database, notes).run(PROBLEMS, SHORT_SEARCH)
    winners, trials = undisturbed_results
    assert results(database, PROBLEMS) == winners
    assert [len(database.measurements(p)) for p in PROBLEMS] == trials
    assert len(hosts.done) == len(set(hosts.done))
    assert sum("is gone" in note for note in notes) == hosts.kills


def test_search_continues_here_without_places(
    undisturbed_results: tuple[list[tuple[str, float]], list[int]],
) -> None:
    database, hosts, notes = Database(None), Hosts(2, lost=1.0), list[str]()
    tune_problems(hosts, PROBLEMS, database, notes).run(PROBLEMS, SHORT_SEARCH)
    assert results(database, PROBLEMS) == undisturbed_results[0]
    assert hosts.kills == MAX_ATTEMPTS * len(PROBLEMS)
    assert "4 of 4 kernels are searched for here" in notes[-1]


def test_place_with_impossible_times_is_left_out(
    undisturbed_results: tuple[list[tuple[str, float]], list[int]],
) -> None:
    database, hosts, notes = Database(None), Hosts(3, lies=[1]), list[str]()
    tune_problems(hosts, PROBLEMS, database, notes).run(PROBLEMS, SHORT_SEARCH)
    assert results(database, PROBLEMS) == undisturbed_results[0]
    assert hosts.names == ["host 0", "host 2"]
    assert "below its bound" in notes[0]


def test_a_result_of_another_machine_is_no_answer(
    undisturbed_results: tuple[list[tuple[str, float]], list[int]],
) -> None:
    class OtherHosts(Hosts):
        def collect(self, timeout: float) -> list[UnitAnswer]:
            (answer,) = super().collect(timeout)
            assert answer.result is not None
            return [evolve(answer, result=evolve(answer.result, machine={"device": "another"}))]

    database, notes = Database(None), list[str]()
    tune_problems(OtherHosts(1), PROBLEMS[:1], database, notes).run(PROBLEMS[:1], SHORT_SEARCH)
    assert results(database, PROBLEMS[:1]) == undisturbed_results[0][:1]
    assert "another machine" in notes[0]


@needs_dask
def test_missing_scheduler_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuts.search.remote import DaskWorkers

    monkeypatch.setattr("cuts.search.remote.dask_workers.PATIENCE", 0.5)
    with pytest.raises(BackendError, match=r"the scheduler tcp://127.0.0.1:9 does not answer"):
        DaskWorkers("tcp://127.0.0.1:9", OPENCL)


@needs_dask
@pytest.mark.parametrize("address", ["nonsense", "foo://host:1", "tcp://127.0.0.1", "tcp://host:port"])
def test_an_address_that_is_none_is_one_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed
    from cuts.search.remote import DaskWorkers

    monkeypatch.setattr(distributed, "Client", None)  # it is not asked
    with pytest.raises(UsageError, match=rf"scheduler '{address}': expected tcp://HOST:PORT: "):
        DaskWorkers(address, OPENCL)


def test_a_child_whose_parent_has_left_ends() -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.send(("builtins:dict", ()))
    ours.close()
    serve(theirs)


@needs_dask
def test_scheduler_workers_of_another_version_are_refused(
    undisturbed_results: tuple[list[tuple[str, float]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuts.search.remote import DaskWorkers
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        engine = DaskWorkers(cluster.scheduler_address, OPENCL, search=made_up)
        try:
            assert engine.places == 2
            database = Database(None)
            tuner = Tuner(SearchExecutor(database, Inline, lambda: FakeBench(by_threads)))
            tuner = evolve(
                tuner, make_search=lambda executor, settings, share: RemoteTuningLoop(engine, executor, settings, share)
            )
            tuner.run(PROBLEMS, SHORT_SEARCH)
            assert results(database, PROBLEMS) == undisturbed_results[0]
        finally:
            engine.close()
        strange = evolve(place_here(OPENCL), version="9.9")
        assert isinstance(strange, SearchPlace)
        monkeypatch.setattr("cuts.search.remote.dask_workers.place_here", Turns(place_here(OPENCL), strange))
        with pytest.raises(UsageError, match=r"has cuts 9\.9 .* this is cuts 0"):
            DaskWorkers(cluster.scheduler_address, OPENCL)


class Turns:
    """Transport that answers local units first, then remote ones.

    Of one process both.
    """

    def __init__(self, here: SearchPlace, there: SearchPlace) -> None:
        self.answers = [here, there]

    def __call__(self, target: object) -> SearchPlace:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def __reduce__(self) -> tuple[type[Turns], tuple[SearchPlace, SearchPlace]]:
        return Turns, (self.answers[-1], self.answers[-1])
