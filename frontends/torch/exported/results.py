"""Results of an exported program: tensors, constants and signature writes.

A buffer or parameter that a program writes is state: an input that begins with its value, and an output that replaces
it. An input that is written comes back as a result, called `<input>.updated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from ....ir import FixedResult, FixedValue, GraphError, Interface, StateTensor
from ..import_context import ImportContext, array_of

#: Kinds of results in a signature that replace buffers and parameters.
_STATE = ("BUFFER_MUTATION", "PARAMETER_MUTATION")
_INPUT = "USER_INPUT_MUTATION"
#: Prefix of the kinds of gradients.
_GRADIENT = "GRADIENT_TO"
#: The order of effects, which is no value.
_ORDER = "TOKEN"


@frozen
class ProgramOutputs:
    """Outputs of a program's graph in order, their names, and its interface."""

    outputs: tuple[str, ...]
    interface: Interface
    names: Mapping[str, str]


def written_targets(signature: Any) -> frozenset[str]:
    """Return the buffers and parameters that a program writes."""
    return frozenset(spec.target for spec in signature.output_specs if spec.kind.name in _STATE)


def program_outputs(
    specs: Sequence[Any],
    found: Sequence[Any],
    names: Sequence[str],
    ctx: ImportContext,
    state: Mapping[str, tuple[str, torch.Tensor]],
    output: Callable[[ImportContext, torch.fx.Node, str], str],
) -> ProgramOutputs:
    """Return the outputs and the interface of an imported program.

    `specs` are those of its signature, one for each node, or value, of `found`. `names` are those of its own results,
    empty where one has none. `state` has the input and the initial
    value of each buffer that it writes; `output` returns a node's value as one that may be an output. Raises
    `GraphError` where it returns and writes no tensor.
    """
    ends = _OutputCollector(ctx, state, output, iter(names))
    for spec, node in zip(specs, found, strict=True):
        ends.add(spec, node)
    outputs = (*ends.results, *ends.updated, *(tensor.output for tensor in ends.state.values()))
    if not outputs:
        raise GraphError("the program returns no tensor and writes none", hint="return at least one tensor")
    return ProgramOutputs(outputs, Interface(ends.state, ends.fixed), ends.names)


@define
class _OutputCollector:
    ctx: ImportContext
    held: Mapping[str, tuple[str, torch.Tensor]]
    output: Callable[[ImportContext, torch.fx.Node, str], str]
    given: Iterator[str]
    names: dict[str, str] = field(factory=dict)
    results: list[str] = field(factory=list)
    updated: list[str] = field(factory=list)
    fixed: dict[str, FixedResult] = field(factory=dict)
    state: dict[str, StateTensor] = field(factory=dict)

    def add(self, spec: Any, node: Any) -> None:
        kind = spec.kind.name
        if kind in _STATE:
            given, tensor = self.held[spec.target]
            found = self._named_output(node, f"{spec.target}.next")
            self.state[spec.target] = StateTensor(given, found, array_of(tensor).copy())
        elif kind == _INPUT:
            self.updated.append(self._named_output(node, f"{spec.target}.updated"))
        elif kind.startswith(_GRADIENT):
            self.results.append(self._named_output(node, f"{spec.target}.gradient"))
        elif kind != _ORDER:
            self._result(node, next(self.given))

    def _result(self, node: Any, given: str) -> None:
        value = self.ctx.value(node) if isinstance(node, torch.fx.Node) else node
        place = len(self.results) + len(self.fixed)
        if value is None or (isinstance(value, (bool, int, float, str)) and not _is_tensor(node)):
            name = given or getattr(node, "name", f"output_{place}")
            self.fixed[self.ctx.fresh(name)] = FixedResult(place, _plain(value))
        elif isinstance(node, torch.fx.Node):
            found = self.output(self.ctx, node, node.name)
            self.results.append(self.ctx.copy_as(found, node.name) if found in self.results else found)
            self.names[str(self.results[-1])] = given or node.name
        else:
            raise GraphError(
                f"result {place} of the program is of type {type(value).__name__}",
                hint="return tensors, numbers, texts and None",
            )

    def _named_output(self, node: torch.fx.Node, name: str) -> str:
        """Return a node's value under its own name."""
        return self.ctx.copy_as(self.output(self.ctx, node, name), name)


def _is_tensor(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _plain(value: Any) -> FixedValue:
    """Return a number, a text or None."""
    if value is None or isinstance(value, bool):
        return value
    kind = next(kind for kind in (int, float, str) if isinstance(value, kind))
    return kind(value)
