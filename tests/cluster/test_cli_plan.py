"""`cuts plan` as a user calls it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from cuts.cli.main import main
from cuts.cluster.storage_rate import StorageRate
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.as_users_build

MODEL = 'name = "tiny"\nlayers = 3\nhidden = 64\nheads = 4\nsequence = 16\nbatch = 4\nprecision = "single"\n'
CLUSTER = (
    'name = "here"\nnodes = 1\ngpus = 1\npeak = 1e10\nefficiency = 0.5\nmemory = 40e6\n'
    "storage_read = 1e9\nstorage_write = 1e9\n"
    "gpu_link = 1e9\nnode_link = 1e9\n"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUTS_DEBUG", raising=False)
    Path("model.toml").write_text(MODEL)
    Path("cluster.toml").write_text(CLUSTER)
    return tmp_path


def test_plans_are_ranked_in_table_and_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt3-175b", "cluster-a", "--limit", "3", "--what-if", "--heat-map", "map.html"]) == 0
    text = capsys.readouterr().out
    for words in (
        "DP",
        "compute",
        "optimiser",
        "rejected, too little GPU memory",
        "least bandwidth",
        "peak FLOP/s x efficiency",
    ):
        assert words in text
    page = Path("map.html").read_text()
    assert "(32, 1, 1)" in page
    assert "http" not in page
    assert main(["plan", "gpt3-175b", "cluster-a", "--json", "--what-if", "--limit", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["plans"]) == 2
    assert found["plans"][0]["binding"] in ("compute", "storage", "GPU to GPU", "optimiser")
    assert found["what_if"]["read"] > 0
    assert found["rejected"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "gpt3-175b"], "expected a model and a cluster"),
        (["plan", "gpt3-175b", "nowhere.toml"], "cannot read nowhere.toml"),
        (["plan", "gpt3-175b", "cluster-a", "--form", "guess"], "unknown form 'guess'"),
        (["plan", "gpt3-175b", "cluster-a", "--wp", "5"], "divides the 32 GPUs"),
        (["plan", "gpt3-175b", "cluster-a", "--limit", "0"], "--limit"),
        (["plan", "run"], "expected one plan"),
        (["plan", "run", "absent.json"], "cannot read absent.json"),
        (["plan", "probe", "more"], "expected no further names"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], words: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) in (2, 3)
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


HUGE = "9" * 23


@pytest.mark.parametrize("more", [(), ("--inference", "--what-if", "--simulate")], ids=["plain", "all"])
@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        *(("model", f"{key} = {HUGE}", f"{key}: expected at most") for key in ("layers", "hidden", "sequence")),
        ("model", f"batch = {HUGE}", "batch: expected at most 100000000"),
        ("model", "hidden = nan", "hidden: expected a whole number, found nan"),
        ("model", "batch = -4", "batch: expected a number above 0"),
        ("model", "heads = 5", "heads: expected a number that divides 64"),
        ("model", "kv_heads = 3", "kv_heads: expected a number that divides 4"),
        ("model", "a = " + "[" * 3000 + "]" * 3000, "model.toml: expected a description as TOML"),
        ("cluster", "storage_read = 0.0", "storage_read: expected a number above 0"),
        ("cluster", "storage_read = nan", "storage_read: expected a number above 0, found nan"),
        ("cluster", "memory = -inf", "memory: expected a number above 0"),
        ("cluster", "peak = 1e-300", "peak: expected 1 to 1e+30"),
        ("cluster", "nodes = 100000000", "nodes x gpus: expected at most 1048576"),
        ("cluster", "efficiency = 1e-9", "efficiency: expected at most 1, at least 1e-06"),
        ("cluster", "request = nan", "request: expected 0 or more seconds"),
        ("cluster", "storage = 0.0", "storage: expected a number above 0"),
        ("cluster", "bandwidth = 1.0", "unknown key 'bandwidth'"),
        ("cluster", "measured = 3", "measured: expected tables"),
        (
            "cluster",
            'measured = [{model="tiny", micro=1, forward=nan, backward=1.0, recomputing=1.0}]',
            "forward: expected seconds",
        ),
    ],
)  # fmt: skip
def test_a_description_that_is_none_is_one_line(
    name: str, line: str, words: str, more: tuple[str, ...], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"{name}.toml")
    rest = [each for each in path.read_text().splitlines() if each.split(" ")[0] != line.split(" ")[0]]
    path.write_text("\n".join([*rest, line]))
    assert main(["plan", "model.toml", "cluster.toml", *more]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_more_gpus_than_sequences_give_no_warnings(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cluster.toml").write_text(CLUSTER.replace("nodes = 1", "nodes = 1024"))
    assert main(["plan", "model.toml", "cluster.toml", "--what-if"]) == 2
    assert "fits here in none of" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["folder", "absent.toml", "bytes.toml", "large.toml", "n" * 5000])
def test_a_binary_file_is_one_line_of_error(source: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    Path("bytes.toml").write_bytes(b"\xff\x00" * 9)
    Path("large.toml").write_text("#" * (2 << 20))
    for arguments in (["plan", source, "cluster.toml"], ["plan", "model.toml", source], ["plan", "run", source]):
        assert main(arguments) in (2, 3)
        error = capsys.readouterr().err
        assert source in error
        assert len(error.splitlines()) == 1


@needs_opencl
def test_a_file_instead_of_a_folder_is_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.toml", "cluster.toml", "-o", "plan.json", "--micro", "2"]) == 0
    for arguments in (["probe"], ["run", "plan.json"]):
        capsys.readouterr()
        assert main(["plan", *arguments, "--folder", "model.toml"]) in (2, 3)
        *notes, error = capsys.readouterr().err.splitlines()
        assert "expected a folder" in error
        assert notes in ([], ["target opencl"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "expected format"),
        ({"way": {"dp": 0, "wp": 1, "p": 1, "policy": "PR", "micro": 1}}, "dp: expected a whole number above 0"),
        ({"way": {"dp": 1, "wp": 1, "p": 1, "policy": "XX", "micro": 1}}, "policy: expected one of PR, AR"),
        ({"way": 3}, "way: expected an object"),
        ({"training": 1}, "training: expected true or false"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_a_damaged_plan_is_refused(
    change: dict[str, object], words: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "model.toml", "cluster.toml", "-o", "plan.json"]) == 0
    document = json.loads(Path("plan.json").read_text()) | change
    Path("plan.json").write_text(json.dumps(document))
    assert main(["plan", "run", "plan.json"]) in (2, 3)
    assert words in capsys.readouterr().err


@needs_opencl
def test_a_plan_is_written_run_and_continued(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.toml", "cluster.toml", "-o", "plan.json", "--resident", "nothing", "--micro", "2"]) == 0
    assert main(["plan", "run", "plan.json", "--steps", "1", "--json"]) == 0
    first = json.loads(_last_json(capsys))
    assert first["first_step"] == 0
    assert first["memory"] <= first["cap"] == 40e6
    assert main(["plan", "run", "plan.json", "--steps", "3", "--json"]) == 0
    second = json.loads(_last_json(capsys))
    assert second["first_step"] == 1
    assert len(second["losses"]) == 2


def _last_json(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().out
    return text[text.index("{") :]


@needs_opencl
def test_the_probe_writes_a_cluster_that_plans(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuts.cluster.probe.BYTES", 1 << 20)
    assert main(["plan", "probe", "--folder", ".", "-o", "probed.toml"]) == 0
    assert main(["plan", "model.toml", "probed.toml", "--json"]) == 0
    assert not list(files.glob(".cuts-probe*"))


@needs_opencl
def test_the_probe_measures_shared_links_with_all_gpus(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuts.cluster.probe.BYTES", 1 << 20)
    monkeypatch.setattr("cuts.cluster.probe._count", lambda dialect: 2)
    monkeypatch.setattr("cuts.cluster.probe._links", lambda count: (3e9, 1e6))
    rates = iter([2e9, 1.8e9, 1.7e9])  # two write, two read, one reads

    def rate(engine: object, move: Callable[[], int], enough: int) -> StorageRate:
        assert move() == (2 if enough == 16 << 20 else 1) << 17
        return StorageRate(next(rates), 0.0, 1, 1.0, True)

    monkeypatch.setattr("cuts.cluster.probe.storage_rate", rate)
    assert main(["plan", "probe", "--folder", "."]) == 0
    text = capsys.readouterr().out
    assert "by 2 GPUs at once (shared: one alone reads 1.7 GB/s)" in text
    found = tomllib.loads(text)
    assert (found["gpus"], found["storage_read"], found["storage_write"]) == (2, 0.9e9, 1e9)
    assert (found["gpu_link"], found["host_link"]) == (3e9, 1e6)
    assert not list(files.glob(".cuts-probe*"))
