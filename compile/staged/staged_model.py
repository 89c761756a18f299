"""ONNX models with operations outside the vocabulary.

Everything else is compiled, and one warning lists the operations that are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ...backends import Array
from ...ir import BackendError, CompileOptions, Graph, PlanError, Target, TensorType, install_command, quote
from ...runtime import PlannedPart, StagedRecord, check_names, load_stages, open_onnxruntime, save_staged
from ..driver import build_graph
from ..loading import Shapes, Spec, spec_of_texts
from ..plan import CompiledPlan
from .staged_plan import Compile, StagedPlan

if TYPE_CHECKING:
    from ...frontends.onnx import Function, Specialisation, StagedModel


@frozen
class _Runner:
    """Runner of a part's plan."""

    plan: CompiledPlan

    def __call__(self, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
        return self.plan.run(arrays)


class ModelPlan(StagedPlan):
    """ONNX model in stages, whose parts are compiled when they first run."""

    def __init__(
        self, stages: StagedModel, target: Target, spec: Spec, types: Mapping[str, TensorType] | None = None
    ) -> None:
        super().__init__(stages.model.graph.name or "model", target)
        self.stages = stages
        self.spec = spec
        self._types = types
        self._alone = RLock()  # parts are compiled, and kept, while they run

    @property
    def foreign(self) -> dict[str, list[str]]:
        return self.stages.foreign

    @property
    def warning(self) -> str:
        return self.stages.warning

    @property
    def category(self) -> type[Warning]:
        from ...frontends.onnx import OpaqueWarning

        return OpaqueWarning

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        if self._types is None:
            self._types = self.stages.input_types({})
        return self._types

    @property
    def parts(self) -> tuple[CompiledPlan, ...]:
        return tuple(
            prepared.run.plan
            for kept in self.stages.compiled.values()
            for prepared in kept
            if isinstance(prepared.run, _Runner)
        )

    @property
    def foreign_time(self) -> float | None:
        return self.stages.time_share

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name.

        Inputs may have other shapes than the plan was made for, which compiles parts anew.
        """
        found = self.outputs_of(inputs)
        self.warn()
        return found

    def outputs_of(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        check_names(tuple(self.stages.inputs), inputs)
        with self._alone:
            return self.stages.run(inputs)

    def trace(self, inputs: Mapping[str, Array]) -> None:
        """Compile all parts for the shapes of a run with these inputs.

        Without a device, values are the reference's.
        """
        self.stages.run(inputs, _execute_anywhere)

    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        found: list[tuple[CompiledPlan, Mapping[str, Any]]] = []

        def note(prepared: Specialisation, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
            given = {name: arrays[name] for name in prepared.inputs}
            if isinstance(prepared.run, _Runner):
                found.append((prepared.run.plan, given))
            return prepared.run(given)

        self.stages.run(inputs, note)
        yield from found

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
            tuple(sorted(stages.borders.opaque)), tuple(sorted(stages.evaluator.functions)), self.spec.texts,
            tuple(self._planned_parts()),
        )  # fmt: skip
        save_staged(record, folder)

    def reopen(self) -> Callable[[Path], ModelPlan]:
        return partial(open_model, functions=self.stages.evaluator.functions)

    def _planned_parts(self) -> Iterator[PlannedPart]:
        for key, kept in self.stages.compiled.items():
            for prepared in kept:
                if isinstance(prepared.run, _Runner):
                    yield PlannedPart(key.nodes, key.outputs, prepared.types, prepared.known, prepared.run.plan.plan)


def _execute_anywhere(prepared: Specialisation, arrays: Mapping[str, Array]) -> Mapping[str, Any]:
    given = {name: arrays[name] for name in prepared.inputs}
    try:
        return prepared.run(given)
    except BackendError:
        if not isinstance(prepared.run, _Runner):
            raise
        return prepared.run.plan.reference(given)


def model_plan(
    model: Any,
    spec: Spec,
    target: Target,
    compile_part: Compile,
    functions: Mapping[str, Function] | None = None,
    shapes: Shapes | None = None,
) -> ModelPlan:
    """Return an ONNX model in stages, without a warning.

    `compile_part` compiles its parts.

    Raises `BackendError` where the package `onnx` is missing.
    """
    try:
        from ...frontends.onnx import staged_onnx
    except ImportError as error:
        raise BackendError(
            f"reading ONNX models needs the package onnx: {error}", hint=install_command("onnx")
        ) from error
    source = Path(model) if isinstance(model, (str, os.PathLike)) else model
    stages = staged_onnx(
        source,
        lambda graph: _Runner(compile_part(graph)),
        functions,
        spec.own,
        None,
        spec.instances.infer,
        open_onnxruntime,
    )
    return ModelPlan(stages, target, spec, stages.input_types(shapes) if shapes is not None else None)


def open_model(folder: str | os.PathLike[str], functions: Mapping[str, Function] | None = None) -> ModelPlan:
    """Open the folder of a model in stages.

    Parts for shapes that the folder lacks are compiled when they run.

    Raises `PlanError` where a function is missing that the plan needs, and `BackendError` where the package onnx is.
    """
    record = load_stages(folder, StagedRecord)
    missing = [name for name in record.functions if name not in (functions or {})]
    if missing:
        raise PlanError(
            f"{folder}: the plan needs a function for {', '.join(map(quote, missing))}", hint="give it to cuts.load"
        )
    try:
        from ...frontends.onnx import PartKey, Specialisation, model_of_graph, staged_onnx
    except ImportError as error:
        message = f"plan {folder} runs nodes of ONNX, which needs the package onnx: {error}"
        raise BackendError(message, hint=install_command("onnx")) from error
    spec = spec_of_texts(record.specs)

    def compile_part(graph: Graph) -> _Runner:
        return _Runner(build_graph(graph, spec, record.target, CompileOptions()))

    model = model_of_graph(record.graph, record.opsets, os.fspath(folder))
    stages = staged_onnx(
        model, compile_part, functions, spec.own, record.weights, spec.instances.infer, open_onnxruntime
    )
    stages.cut_at(record.opaque)
    for part in record.parts:
        runner = _Runner(CompiledPlan(part.plan))
        kept = stages.compiled.setdefault(PartKey(part.nodes, part.outputs), [])
        kept.append(Specialisation(part.types, part.known, part.plan.inputs, part.plan.outputs, runner))
    return ModelPlan(stages, record.target, spec, record.types)
