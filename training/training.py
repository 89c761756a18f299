"""Training graphs: forward, backward and optimiser step in one graph.

It compiles like any other.

    training = cuts.grad(graph, loss="loss", optimiser=cuts.SGD(momentum=0.9))
    plan = training.build("opencl")
    trained = training.run(batches, plan, checkpoint="state.safetensors", every=100)

Parameters, the optimiser's state and running statistics are inputs and outputs of the graph: the output `w.next`
is the input `w` of the next step. The learning rate is an input too, so that it may change without compiling
again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from attrs import define, evolve, field, frozen

from ..backends import find_target
from ..compile import CompiledPlan, ModelLike, Shapes, Spec, build_tuned, load_model, load_spec
from ..frontends import save_graph
from ..ir import (
    Array,
    CompileOptions,
    DType,
    Graph,
    Mode,
    Node,
    Target,
    TensorType,
    UsageError,
    atomic_write,
    quote,
    verify_graph,
)
from ..ops.gradient import Gradients
from ..passes.graph import SinkBroadcasts, differentiate_graph, fresh_name, prune
from .checkpoint import Checkpoint
from .loop import TrainingLoop
from .optimisers import Optimiser

RATE = "learning_rate"


Run: TypeAlias = Callable[[Mapping[str, object]], Mapping[str, Any]]


@frozen
class Training:
    """Training graph, its vocabulary, and the state between steps.

    `carried` maps an input to the output that is its value in the next step; `initial` has the values of the
    first one. `gradients` names the gradient of each parameter in the graph; without an optimiser these are outputs.
    """

    graph: Graph
    spec: Spec
    loss: str
    gradients: Mapping[str, str]
    carried: Mapping[str, str]
    initial: Mapping[str, Array]

    def build(
        self,
        target: str | Target = "auto",
        *,
        mode: Mode = "mixed",
        budget: float | None = None,
        tune: bool = False,
        frozen: bool = False,
        memory: int | None = None,
        options: CompileOptions | None = None,
    ) -> CompiledPlan:
        """Compile the training graph for a target, like `cuts.build`.

        With `tune`, candidates are timed on the target's device, for at most `budget` seconds; with `frozen`, only
        results that the tuning database has are used. The plan takes at most `memory` bytes on the device: values of
        the forward pass are rematerialised where storing them takes more. `options` has all of `mode`, `budget` and
        `memory`: give it, or them.
        """
        machine = find_target(target) if isinstance(target, str) else target
        chosen = options or CompileOptions(mode=mode, budget=budget, memory=memory)
        chosen = evolve(chosen, begun=chosen.begin())
        return build_tuned(self.graph, self.spec, machine, chosen, tune=tune, frozen=frozen)

    def run(
        self,
        batches: Iterable[Mapping[str, object]],
        plan: CompiledPlan | None = None,
        *,
        state: Mapping[str, object] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 0,
        outputs: Sequence[str] = (),
        notice: Callable[[int, Mapping[str, Array]], None] | None = None,
        progress: bool | None = None,
    ) -> Checkpoint:
        """Run a step on each batch; return the state and the losses.

        The state stays on the device from step to step. `state` replaces parts of `initial`. `notice` is called with
        the number of each step, its loss and other `outputs`. A progress bar is shown where standard error is a
        terminal, or where `progress` is true.

        The state is written atomically to the file `checkpoint` after each `every` steps and at the end. Where the file
        exists, as an interrupted run leaves it, its steps are done: their batches are skipped, and the results are bit
        for bit those of an uninterrupted run.
        """
        loop = TrainingLoop(
            plan or self.build(), self.carried, self.loss, checkpoint, every, tuple(outputs), notice, progress
        )
        return loop.run(batches, {**self.initial, **(state or {})})

    def step(
        self, run: Run, state: Mapping[str, object], batch: Mapping[str, object]
    ) -> tuple[dict[str, Any], dict[str, object]]:
        """Run one step; return its results and the next state.

        Results are the outputs that are not carried, the loss among them.
        """
        outputs = run({**state, **batch})
        moved = {name: outputs[source] for name, source in self.carried.items()}
        results = {name: value for name, value in outputs.items() if name not in self.carried.values()}
        return results, {**state, **moved}

    def reference(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Compute the outputs in float64 from the declarations; can stand for `plan.run`."""
        from ..ops import evaluate_graph

        arrays = {name: np.asarray(inputs[name]) for name in self.graph.inputs if name in inputs}
        return evaluate_graph(self.graph, self.spec.registry, arrays)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as graph.json, with its declarations beside it.

        Compile them with `cuts compile G.json --spec G.cuts`.

        Raises `UsageError` where they cannot be written.
        """
        save_graph(self.graph, path)
        with atomic_write(Path(path).with_suffix(".cuts"), "declarations") as part:
            part.write_text("\n".join(self.spec.texts.values()), encoding="utf-8")


def grad(
    model: ModelLike,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    optimiser: Optimiser | None = None,
    *,
    updates: Mapping[str, str] | None = None,
    given: str | None = None,
    shapes: Shapes | None = None,
    spec: Sequence[str | os.PathLike[str]] = (),
) -> Training:
    """Return the training graph of a model.

    `loss` is a value of one element (by default the only output), or of any shape where an input is `given` as its
    gradient; `wrt` the parameters (by default every float constant with axes that the loss depends on differentiably).
    `updates` maps inputs or constants to values of the graph that replace them after each step, as running statistics
    do; state of the graph is such an input. Without an optimiser the graph returns the gradients.

    Raises `UsageError` where the loss is not named and there is not one output.
    """
    vocabulary = load_spec(spec)
    graph = load_model(model, vocabulary, shapes)
    if loss is None:
        results = graph.interface.caller_outputs(graph.outputs)
        if len(results) != 1:
            raise UsageError(
                f"expected the name of the loss, as there are {len(results)} outputs", hint="pass loss=..."
            )
        loss = results[0]
    # Before there are gradients: that of a repeated tensor is one sum then, and not a tensor for each repetition.
    graph = SinkBroadcasts(vocabulary.registry.instances).sink(graph)
    state = graph.interface.state.values()
    kept = {tensor.input: tensor.output for tensor in state}
    builder = _Builder(graph, vocabulary, loss, optimiser, {**kept, **(updates or {})}, given)
    builder.initial.update({tensor.input: tensor.initial for tensor in state})
    return builder.build(wrt)


@define
class _Builder:
    graph: Graph
    vocabulary: Spec
    loss: str
    optimiser: Optimiser | None
    updates: dict[str, str]
    given: str | None = None
    types: dict[str, TensorType] = field(factory=dict)
    nodes: list[Node] = field(factory=list)
    carried: dict[str, str] = field(factory=dict)
    initial: dict[str, Array] = field(factory=dict)

    def build(self, wrt: Sequence[str] | None) -> Training:
        for name, value in self.updates.items():
            if name not in {*self.graph.inputs, *self.graph.constants} or value not in self.graph.types:
                raise UsageError(
                    f"updates: expected an input or constant and a value, found {quote(name)}: {quote(value)}"
                )
        derived = Gradients(self.vocabulary.registry)
        parameters = tuple(wrt) if wrt is not None else self._candidates()
        found = differentiate_graph(self.graph, derived, self.loss, parameters, partial=wrt is None, given=self.given)
        if not found.gradients:
            raise UsageError(
                "the loss depends on no constant that could be trained", hint="name inputs or constants: wrt=[...]"
            )
        spec = Spec(derived.registry, {**self.vocabulary.texts, **derived.texts})
        self.types.update(found.graph.types)
        self.nodes.extend(found.graph.nodes)
        outputs = dict.fromkeys((*self.graph.outputs, self.loss))
        if self.optimiser is None:
            outputs.update(dict.fromkeys(found.gradients.values()))
        else:
            self._optimise(self.optimiser, found.gradients)
        for name, value in self.updates.items():
            self._carry(name, value)
        graph = self._graph(found.graph, (*outputs, *(v for v in self.carried.values() if v not in outputs)), spec)
        return Training(graph, spec, self.loss, found.gradients, self.carried, self.initial)

    def _candidates(self) -> tuple[str, ...]:
        """Return the constants that may be parameters: floats with axes that no update replaces."""
        types = self.graph.types
        return tuple(
            v for v in self.graph.constants if v not in self.updates and types[v].dtype.is_float and types[v].shape
        )

    def _carry(self, name: str, source: str) -> None:
        self.carried[name] = source
        if name in self.graph.constants:
            self.initial[name] = self.graph.constants[name]

    def _input(self, name: str, type_: TensorType, value: Array) -> str:
        name = fresh_name(self.types, name)
        self.types[name] = type_
        self.initial[name] = value
        return name

    def _optimise(self, optimiser: Optimiser, gradients: Mapping[str, str]) -> None:
        scalars: dict[DType, tuple[str, ...]] = {}
        for parameter, gradient in gradients.items():
            if parameter not in {*self.graph.inputs, *self.graph.constants}:
                raise UsageError(
                    f"{quote(parameter)} is computed, no optimiser can change it",
                    hint="name inputs or constants: wrt=[...]",
                )
            type_ = self.types[parameter]
            if type_.dtype not in scalars:
                scalars[type_.dtype] = self._scalars(optimiser, type_.dtype)
            rate, *count = scalars[type_.dtype]
            zeros = np.zeros(type_.shape, type_.dtype.numpy)
            state = [self._input(f"{parameter}.{name}", type_, zeros) for name in optimiser.state]
            moved = [fresh_name(self.types, f"{parameter}.next"), *(f"{name}.next" for name in state)]
            self.types.update(dict.fromkeys(moved, type_))
            inputs = (parameter, gradient, rate, *state, *count)
            self.nodes.append(
                Node(self._name(f"{parameter}.step"), optimiser.op, inputs, tuple(moved), dict(optimiser.attributes))
            )
            for name, source in zip((parameter, *state), moved, strict=True):
                self._carry(name, source)

    def _scalars(self, optimiser: Optimiser, dtype: DType) -> tuple[str, ...]:
        """Return the learning rate and, where the optimiser counts, the number of the step."""
        scalar = TensorType(dtype, ())
        suffix = "" if dtype is DType.F32 else f".{dtype}"
        rate = self._input(RATE + suffix, scalar, np.asarray(optimiser.rate, dtype.numpy))
        if not optimiser.counts:
            return (rate,)
        done = self._input("steps" + suffix, scalar, np.zeros((), dtype.numpy))
        one, step = fresh_name(self.types, f"{done}.one"), fresh_name(self.types, f"{done}.next")
        self.types |= {one: scalar, step: scalar}
        self.graph = evolve(self.graph, constants={**self.graph.constants, one: np.ones((), dtype.numpy)})
        self.nodes.append(Node(self._name("count"), "add", (done, one), (step,)))
        self._carry(done, step)
        return rate, step

    def _name(self, hint: str) -> str:
        return fresh_name({n.name for n in self.nodes}, hint)

    def _graph(self, differentiated: Graph, outputs: Sequence[str], spec: Spec) -> Graph:
        """Assemble the graph: tensors that change from step to step become inputs."""
        inputs = tuple(dict.fromkeys((*self.graph.inputs, *self.carried, *self.initial)))
        constants = {**differentiated.constants, **self.graph.constants}
        kept = {v: a for v, a in constants.items() if v not in inputs}
        whole = Graph(f"{self.graph.name}.training", inputs, tuple(outputs), self.types, tuple(self.nodes), kept)
        return verify_graph(prune(whole), spec.registry.instances.infer)
