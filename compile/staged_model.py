"""Models with operations outside the vocabulary.

Everything else is compiled, and one warning lists the operations that are not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..backends import Array
from ..ir import BackendError, Graph, GraphError, PlanError, Target, TensorType, quote
from ..numerics import Comparison, compare
from ..runtime import PlannedPart, StagedRecord, check_names, load_staged, random_inputs, save_staged
from .loading import Shapes, Spec, spec_of_texts
from .plan import CompiledPlan

if TYPE_CHECKING:
    from ..frontends.onnx import Function, Specialisation, StagedModel

#: Makes the plan of a part.
Compile = Callable[[Graph], CompiledPlan]


@frozen
class _Runner:
    """Runner of a part's plan."""

    plan: CompiledPlan

    def __call__(self, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
        return self.plan.run(arrays)


class StagedPlan:
    """Model in stages: plans of its parts, and uncompiled nodes between them.

    Parts are compiled when they first run.
    """

    def __init__(
        self, stages: StagedModel, target: Target, spec: Spec, types: Mapping[str, TensorType] | None = None
    ) -> None:
        self.stages = stages
        self.target = target
        self.spec = spec
        self.name = stages.model.graph.name or "model"
        self.notice: Callable[[str], None] = _warn
        self._types = types
        self._noticed = ""
        self._alone = RLock()  # parts are compiled, and kept, while they run

    def __repr__(self) -> str:
        """Return inputs, uncompiled operations, and the target."""
        given = ", ".join(f"{name}: {type_}" for name, type_ in (self._types or {}).items()) or "..."
        return f"StagedPlan({self.name!r}: ({given}), {', '.join(self.foreign)} uncompiled, for {self.target.name})"

    @property
    def foreign(self) -> dict[str, list[str]]:
        """The operations that run uncompiled, with the names of their nodes."""
        return self.stages.foreign

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs that the plan was made for."""
        if self._types is None:
            self._types = self.stages.input_types({})
        return self._types

    @property
    def parts(self) -> tuple[CompiledPlan, ...]:
        """Plans of the parts that are compiled so far.

        They are in the order of the model.
        """
        return tuple(
            prepared.run.plan
            for kept in self.stages.compiled.values()
            for prepared in kept
            if isinstance(prepared.run, _Runner)
        )

    @property
    def complete(self) -> bool:
        """Return whether every search finished within its budget."""
        return all(part.complete for part in self.parts)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name.

        Inputs may have other shapes than the plan was made for, which compiles parts anew.
        """
        check_names(tuple(self.stages.inputs), inputs)
        with self._alone:
            found = self.stages.run(inputs)
        self.warn()
        return found

    def trace(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compile all parts for the shapes of a run with these inputs.

        Without a device, values are the reference's.
        """
        return self.stages.run(inputs, _execute_anywhere)

    def warn(self) -> None:
        """Report the uncompiled operations to `notice`, once."""
        text = self.stages.warning
        if text and text != self._noticed:
            self._noticed = text
            self.notice(text)

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Return random inputs of the right types."""
        return random_inputs(self.inputs, tuple(self.inputs), seed)

    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        """Run, and yield the plan of every part with its inputs."""
        found: list[tuple[CompiledPlan, Mapping[str, Any]]] = []

        def note(prepared: Specialisation, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
            given = {name: arrays[name] for name in prepared.inputs}
            if isinstance(prepared.run, _Runner):
                found.append((prepared.run.plan, given))
            return prepared.run(given)

        self.stages.run(inputs, note)
        yield from found

    def verify(
        self, inputs: Mapping[str, Any] | None = None, oracle: Mapping[str, Any] | None = None
    ) -> tuple[Comparison, ...]:
        """Run and compare every part with the float64 reference.

        Each part is evaluated on the operands that it got. With an oracle's values, the outputs are compared with these
        instead.

        A foreign operation has no reference but itself, and may turn a rounding into another result; so parts are
        compared one by one.

        Raises `GraphError` where the oracle lacks an output.
        """
        given = self.random_inputs() if inputs is None else inputs
        if oracle is None:
            return tuple(result for part, arrays in self.part_inputs(given) for result in part.verify(arrays))
        found = self.stages.run(given)
        missing = [name for name in found if name not in oracle]
        if missing:
            raise GraphError(
                f"the oracle has no output {quote(missing[0])}", hint=f"it has: {', '.join(map(quote, oracle))}"
            )
        return tuple(compare(name, value, oracle[name], 2 * self.tolerance()) for name, value in found.items())

    def tolerance(self) -> float:
        """Return the relative rounding error, with foreign operations as identities."""
        return sum(max(part.tolerances().values(), default=0.0) for part in self.parts)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan's folder atomically.

        Parts that have not run yet are compiled when they do.
        """
        stages = self.stages
        graph = type(stages.model.graph)()
        graph.CopyFrom(stages.model.graph)
        del graph.initializer[:]
        record = StagedRecord(
            self.name, self.target, self.inputs, graph.SerializeToString(), stages.model.opsets, stages.weights,
            tuple(sorted(stages.borders.opaque)), tuple(sorted(stages.functions)), self.spec.texts,
            tuple(self._planned_parts()),
        )  # fmt: skip
        save_staged(record, folder)

    def _planned_parts(self) -> Iterator[PlannedPart]:
        for key, kept in self.stages.compiled.items():
            for prepared in kept:
                if isinstance(prepared.run, _Runner):
                    yield PlannedPart(key.nodes, key.outputs, prepared.types, prepared.known, prepared.run.plan.plan)


def _warn(text: str) -> None:
    from ..frontends.onnx import OpaqueWarning

    warnings.warn(text, OpaqueWarning, stacklevel=4)


def _execute_anywhere(prepared: Specialisation, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
    given = {name: arrays[name] for name in prepared.inputs}
    try:
        return prepared.run(given)
    except BackendError:
        if not isinstance(prepared.run, _Runner):
            raise
        return prepared.run.plan.reference(given)


def staged_plan(
    model: Any,
    spec: Spec,
    target: Target,
    compile_part: Compile,
    functions: Mapping[str, Function] | None = None,
    shapes: Shapes | None = None,
) -> StagedPlan:
    """Return a model in stages whose parts `compile_part` compiles, without a warning.

    Raises `BackendError` where the package `onnx` is missing.
    """
    try:
        from ..frontends.onnx import staged_onnx
    except ImportError as error:
        raise BackendError(
            f"reading ONNX models needs the package onnx: {error}", hint="pip install 'cuts[onnx]'"
        ) from error
    source = Path(model) if isinstance(model, (str, os.PathLike)) else model
    stages = staged_onnx(
        source, lambda graph: _Runner(compile_part(graph)), functions, spec.own, infer=spec.instances.infer
    )
    return StagedPlan(stages, target, spec, stages.input_types(shapes) if shapes is not None else None)


def open_staged(
    folder: str | os.PathLike[str],
    compile_graph: Callable[[Graph, Spec, Target], CompiledPlan],
    functions: Mapping[str, Function] | None = None,
) -> StagedPlan:
    """Open the folder of a model in stages.

    `compile_graph` makes the plans of parts for shapes that the folder lacks.

    Raises `PlanError` where a function is missing that the plan needs, and `BackendError` where the package onnx is.
    """
    record = load_staged(folder)
    missing = [name for name in record.functions if name not in (functions or {})]
    if missing:
        raise PlanError(
            f"{folder}: the plan needs a function for {', '.join(map(quote, missing))}", hint="give it to cuts.load"
        )
    try:
        from ..frontends.onnx import PartKey, Specialisation, model_of_graph, staged_onnx
    except ImportError as error:
        message = f"plan {folder} runs nodes of ONNX, which needs the package onnx: {error}"
        raise BackendError(message, hint="pip install 'cuts[onnx]'") from error
    spec = spec_of_texts(record.specs)

    def compile_part(graph: Graph) -> _Runner:
        return _Runner(compile_graph(graph, spec, record.target))

    model = model_of_graph(record.graph, record.opsets, os.fspath(folder))
    stages = staged_onnx(model, compile_part, functions, spec.own, record.weights, spec.instances.infer)
    stages.cut_at(record.opaque)
    for part in record.parts:
        runner = _Runner(CompiledPlan(part.plan))
        kept = stages.compiled.setdefault(PartKey(part.nodes, part.outputs), [])
        kept.append(Specialisation(part.types, part.known, part.plan.inputs, part.plan.outputs, runner))
    return StagedPlan(stages, record.target, spec, record.types)
