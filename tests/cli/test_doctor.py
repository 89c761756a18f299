"""`cuts doctor`: missing packages and the commands that bring them."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from cuts.backends.devices import TargetChoice
from cuts.cli import extras
from cuts.cli.extras import PURPOSES, find_extras
from cuts.cli.main import main

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Extras for work on the package, and the one of all others.
OF_DEVELOPERS = {"all", "examples", "test", "zoo", "docs", "lint", "release"}


def environment(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """Let these packages be installed, with the project's requirements."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    def requires(name: str) -> list[str]:
        if name == "pyopencl":
            return ["numpy", "pocl-binary-distribution>=1.2; extra == 'pocl'"]
        if name not in ("cuts-compiler", *versions):
            raise metadata.PackageNotFoundError(name)
        listed = PROJECT["optional-dependencies"].items() if name == "cuts-compiler" else ()
        return [f'{text}; extra == "{extra}"' for extra, texts in listed for text in texts]

    monkeypatch.setattr(extras.metadata, "version", version)
    monkeypatch.setattr(extras.metadata, "requires", requires)


def test_every_extra_has_a_purpose() -> None:
    assert set(PURPOSES) == set(PROJECT["optional-dependencies"]) - OF_DEVELOPERS
    every = {name for text in PROJECT["optional-dependencies"]["all"] for name in re.findall(r"[\w]+", text)[2:]}
    assert set(PURPOSES) - {"pycuda", "cuda", "cuda12"} == every  # `libraries` has `cuda`


def test_missing_and_old_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, {"pyopencl": "2025.2", "onnx": "1.20.1", "onnxruntime": "1.30", "simpy": "4.1.1"})
    found = {extra.name: extra for extra in find_extras()}
    assert (found["opencl"].installed, found["opencl"].missing) == (("pyopencl 2025.2",), ("pocl-binary-distribution",))
    assert (found["onnx"].installed, found["onnx"].missing) == (("onnxruntime 1.30",), ("onnx",))
    assert (found["cluster"].missing, found["cluster"].command) == ((), "")
    assert set(found["pycuda"].missing) == {"cuda-bindings", "nvidia-cuda-nvrtc", "pycuda"}
    assert found["pycuda"].command == "pip install 'cuts-compiler[pycuda]'"


def test_a_checkout_has_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "version", missing)
    monkeypatch.setattr(extras.metadata, "requires", missing)
    assert {extra.name: extra.missing for extra in find_extras()}["cluster"] == ("simpy",)


def test_doctor_prints_commands_and_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(monkeypatch, {"onnx": "1.22", "onnxruntime": "1.30"})
    monkeypatch.setattr("cuts.cli.commands.doctor.choose_target", lambda: TargetChoice("cuda:device", "a GPU"))
    monkeypatch.setattr("cuts.cli.commands.doctor._device", lambda name: f"a device of {name}")
    assert main(["doctor"]) == 0
    printed = capsys.readouterr()
    assert "pip install 'cuts-compiler[opencl]'" in printed.out
    assert "cuts-compiler[onnx]" not in printed.out
    assert "a device of cuda:device" in printed.out
    assert "a GPU" in printed.err
    assert main(["doctor", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["target"] == "cuda:device"
    assert values["extras"]["onnx"]["missing"] == []
    assert values["libcuts_run"]
    assert {"path", "entries", "bytes", "tuning"} <= set(values["cache"])
