"""TOML descriptions: packaged ones by name, others by path."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from attrs import NOTHING, fields

from ...ir import CutsError, UsageError, raise_all
from .descriptions import BlockTimes, Machine
from .transformer import Transformer

T = TypeVar("T")
_LIMIT = 1 << 20


def known_models() -> tuple[str, ...]:
    """Return the names of the packaged models."""
    return _names_in("models")


def known_machines() -> tuple[str, ...]:
    """Return the names of the packaged clusters."""
    return _names_in("machines")


def load_transformer(source: str | os.PathLike[str]) -> Transformer:
    """Return a model by its name or from a TOML file.

    Raises a `CutsError` that lists all faults.
    """
    return structure(_table(source, "models"), Transformer, str(source))


def load_machine(source: str | os.PathLike[str]) -> Machine:
    """Return a cluster by its name or from a TOML file.

    Raises a `CutsError` that lists all faults.
    """
    return structure(_table(source, "machines"), Machine, str(source))


def machine_text(machine: Machine, comment: str) -> str:
    """Return a cluster's description as TOML; reading it back gives the same."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for each in fields(Machine):
        value = getattr(machine, each.name)
        if value is not None and each.name != "measured":
            lines.append(f"{each.name} = {_literal(value)}")
    for measured in machine.measured:
        lines += [
            "",
            "[[measured]]",
            *(f"{f.name} = {_literal(getattr(measured, f.name))}" for f in fields(BlockTimes)),
        ]
    return "\n".join(lines) + "\n"


def transformer_text(model: Transformer, comment: str) -> str:
    """Return a model's description as TOML, without usual values.

    Reading it back gives the same.
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    for each in fields(Transformer):
        value = getattr(model, each.name)
        if value is not None and value != each.default:
            lines.append(f"{each.name} = {_literal(value)}")
    return "\n".join(lines) + "\n"


def structure(table: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Make a description from a table.

    Raises `UsageError` for each key with another name or type than it has.
    """
    known, hints = {each.name: each for each in fields(kind)}, get_type_hints(kind)  # type: ignore[arg-type]
    errors: list[CutsError] = [
        UsageError(f"{where}: unknown key '{key}'", hint=_hint(key, known)) for key in table if key not in known
    ]
    missing = [name for name, each in known.items() if each.default is NOTHING and name not in table]
    errors += [UsageError(f"{where}: key '{name}' is missing") for name in missing]
    values: dict[str, Any] = {}
    for key, value in table.items():
        try:
            if key in known:
                values[key] = _value(value, hints[key], f"{where}: {key}")
        except CutsError as error:
            errors.append(error)
    raise_all(errors)
    try:
        return kind(**values)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from None


def _value(value: Any, hint: Any, where: str) -> Any:
    kinds = get_args(hint) or (hint,)
    if BlockTimes in kinds:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise UsageError(f"{where}: expected tables, found {value!r}")
        return tuple(structure(item, BlockTimes, f"{where}[{number}]") for number, item in enumerate(value))
    if float in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) in kinds:
        return value
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    raise UsageError(f"{where}: expected {names.get(kinds[0], 'a value')}, found {value!r}")


def _hint(key: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"keys are: {', '.join(known)}"


def _names_in(folder: str) -> tuple[str, ...]:
    names = (entry.name for entry in (files(__package__) / folder).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def _table(source: str | os.PathLike[str], folder: str) -> dict[str, Any]:
    if str(source) in _names_in(folder):
        return tomllib.loads((files(__package__) / folder / f"{source}.toml").read_text(encoding="utf-8"))
    path = Path(source)
    try:
        if path.stat().st_size > _LIMIT:
            raise UsageError(f"{path}: expected a description, found a file of more than {_LIMIT} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint=f"known {folder}: {', '.join(_names_in(folder))}"
        ) from error
    except (ValueError, RecursionError) as error:  # no TOML, no text or no name of a file
        raise UsageError(f"{path}: expected a description as TOML: {error}") from error


def _literal(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)
