"""Backend of `torch.compile`: captured graphs, forward and backward.

Where gradients are wanted, PyTorch's autograd makes two graphs of core operations. Both are imported in the same way:
backward operations decompose, or are the derived adjoints of their forward operations (`operators.gradients`). A graph
is cut around calls that cannot be imported (`partial`); these run in PyTorch, with a warning.

The compiled graph of a module that needs nothing of autograd is cached by the module's fingerprint
(`module_fingerprint.py`). A later process finds it by the same fingerprint: neither autograd nor our passes see the
module again.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import evolve
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ....ir import CutsError
from ..calls import inline_regions, updated_inputs
from ..captured_graph import CapturedGraph, GraphSignature, UncompiledWarning
from ..decompositions import ForeignLayerError, compile_layers, decompose_layers
from ..devices import check_devices, device_of
from ..dispatch import results
from ..loading import CompileModule, graph_of_nodes, save_precompiled
from ..partial import CompiledStages, StagedFunction, compile_computed, compile_stages, with_drawn_inputs
from ..program import ArrayFunction, CachedGraph, Choice, CompileGraph, GraphCache
from ..results import checked_results, computes
from ..tensors import TensorFunction, call_boxed, function_of_signature, function_of_tensors
from .autograd import LazyGraph, apply_autograd, wants_gradients
from .buckets import BucketedModule
from .complex_borders import RealGraph, with_real_borders
from .dynamic import compile_by_shape, is_dynamic, replace_numbers
from .frozen import FrozenFunction, check_frozen
from .module_fingerprint import module_fingerprint
from .parameters import (
    do_overlap,
    frozen_inputs,
    is_direct,
    lift_attributes,
    module_numbers,
    parameter_inputs,
    unwrap_subclasses,
    unwrapped_tensors,
)
from .updates import updating

_LOG = logging.getLogger("cuts.frontends")


def dynamo_backend(
    module: Any,
    examples: Sequence[Any],
    compile_graph: CompileGraph,
    freeze: bool = False,
    cache: GraphCache | None = None,
    max_shapes: int | None = None,
    buckets: bool = False,
    begin: Callable[[], None] | None = None,
    memory: float = 1.0,
    again: CompileModule | None = None,
) -> Any:
    """Compile a captured module: the entry that `torch.compile` calls.

    Graphs of gradients are compiled in the same way. With `freeze`, parameters and buffers become constants. `cache`
    has the compiled graphs of other processes. For a module of dynamic shape, plans of `max_shapes` shapes are cached;
    with `buckets`, one for all sizes up to each power of two, where no gradients are wanted. Forward graphs save
    the part `memory` of the activations that backward graphs read. `begin` is called before
    the graphs of each shape are compiled. Where PyTorch precompiles, `again` compiles the module in a later process.

    Raises `UsageError` where gradients of frozen parameters are wanted.
    """

    def compile_static(module: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        with config.patch(activation_memory_budget=memory):
            return compile_within(module, arguments)

    def compile_within(module: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        if begin is not None:
            begin()
        held = parameter_inputs(module, arguments)
        frozen = {n: arguments[n] for n in sorted(held)} if freeze else {}
        check_frozen(frozen)
        if cache is None:
            return _compile_module(module, arguments, compile_graph, held, frozen)[0]
        with unset_fake_temporarily():  # constants are numbers here
            words = module_fingerprint(module, arguments, held, frozen)
            known = words and _find_cached(module, arguments, compile_graph, held, frozen, partial(cache.find, words))
        if known:
            return known
        function, made = _compile_module(module, arguments, compile_graph, held, frozen)
        if words and made:
            cache.keep(words, made)
        return function

    module = inline_regions(module)
    if again is not None and not any(map(is_dynamic, examples)):
        save_precompiled(module, parameter_inputs(module, examples), again)
    lifted, attributes = lift_attributes(module)
    if do_overlap(attributes):
        warnings.warn("parameters or state share memory: their update runs in PyTorch", UncompiledWarning, stacklevel=3)
        return module.forward
    module, examples, is_unwrapped = unwrap_subclasses(lifted, [*attributes, *examples])
    if any(map(is_dynamic, examples)):
        find_bucket = _bucket_finder(module, compile_graph) if buckets and not freeze else None
        function = compile_by_shape(module, compile_static, max_shapes, find_bucket)
    else:
        function = compile_static(module, examples)
    if is_unwrapped:
        return lambda *given: function(*unwrapped_tensors([*attributes, *given]))
    return partial(function, *attributes) if attributes else function


def _bucket_finder(
    module: Any, compile_graph: CompileGraph
) -> Callable[[Mapping[int, float], Sequence[Any]], Callable[..., Any] | None]:
    """Return the function that finds the plan of a call's bucket, by its numbers and arguments."""
    bucketed: dict[tuple[float, ...], BucketedModule] = {}

    def find_bucket(known: Mapping[int, float], arguments: Sequence[Any]) -> Callable[..., Any] | None:
        key = tuple(known.values())
        if key not in bucketed:
            bucketed[key] = BucketedModule(replace_numbers(module, known))
        held, device = parameter_inputs(module, arguments), device_of(arguments)
        compile_captured = lambda captured: function_of_tensors(captured, device, compile_graph, held)  # noqa: E731
        return bucketed[key].find(arguments, compile_captured)

    return find_bucket


def _compile_module(
    module: Any,
    arguments: Sequence[Any],
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> tuple[Callable[..., Any], CachedGraph | None]:
    """Compile a captured module; return its function, and its cache entry where autograd adds nothing."""
    made: list[tuple[GraphSignature, ArrayFunction | Choice]] = []
    direct: list[tuple[TensorFunction, CachedGraph]] = []
    unread: list[CutsError] = []
    notices = _Notices()
    trained, kinds = wants_gradients(arguments), [*map(type, arguments)]  # closures hold no argument
    later = [trained]  # whether a backward graph follows

    def compile_noted(import_graph: CapturedGraph, device: Any) -> ArrayFunction | Choice:
        captured = evolve(import_graph, is_last=not later[0])
        made[:] = [(import_graph.signature, compile_graph(captured, device))]
        return made[0][1]

    def compile_part(part: Any, inputs: Sequence[Any]) -> Any:
        try:
            return compile_autograd_graph(part, inputs)
        finally:
            later[0] = False

    def compile_autograd_graph(part: Any, inputs: Sequence[Any]) -> Any:
        if not computes(results(part.graph)) or (unread and met.layers):
            return make_boxed_func(part.forward)
        try:
            with unset_fake_temporarily():
                real = with_real_borders(part.graph, frozen_inputs(part.graph, frozen))
                checked = _compile_checked(real, device_of(inputs), compile_noted, held, frozen)
                if real.graph is part.graph and is_direct(part.graph, kinds):
                    (ends, compiled), constants = made[0], tuple(frozen_inputs(part.graph, frozen))
                    updated = updated_inputs(part.graph)
                    direct.append((updating(checked, updated), CachedGraph(ends, constants, compiled, updated)))
                return _consumer(checked) if trained and not later[0] else make_boxed_func(checked)
        except CutsError as error:
            computed = _compile_computed(part.graph, device_of(inputs), compile_graph, held, frozen)
            if computed is not None:
                return make_boxed_func(computed)
            stages = _compile_stages(part.graph, device_of(inputs), compile_graph, held, frozen, error)
            if stages is not None and stages.parts:
                notices.add(stages.warning)
                stages.function.logged = True
                return _boxed_function(part.graph, stages.function)
            unread.append(error)
            notices.add(_whole_warning(part.graph, error))
            return make_boxed_func(part.forward)

    compile_layers(compile_graph)
    with decompose_layers() as met, notices:
        try:
            whole = apply_autograd(module, arguments, with_drawn_inputs(compile_part))
        except ForeignLayerError as error:
            unread.append(error)
            notices.add(_whole_warning(module.graph, error))
    if unread and met.layers:  # PyTorch has routines for recurrent layers, and none for their decomposition
        return module.forward, None
    return direct[0] if direct else (whole, None)


def _consumer(function: TensorFunction) -> Any:
    """Return a backward graph's function, which releases saved tensors while it runs."""

    def call(arguments: list[Any]) -> list[Any]:
        return call_boxed(function, arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _whole_warning(graph: torch.fx.Graph, error: CutsError) -> str:
    return f"a graph of {len(graph.nodes)} nodes runs in PyTorch: {error}"


class _Notices:
    """Warnings of a captured module, given as one at the end, and later ones at once."""

    def __init__(self) -> None:
        self._texts: list[str] | None = None

    def __enter__(self) -> None:
        self._texts = []

    def __exit__(self, *_: object) -> None:
        texts, self._texts = self._texts, None
        if texts:
            self.add("; ".join(dict.fromkeys(texts)))

    def add(self, text: str) -> None:
        if not text:
            return
        if self._texts is None:
            warnings.warn(text, UncompiledWarning, stacklevel=4)
        else:
            self._texts.append(text)


def _find_cached(
    module: Any,
    arguments: Sequence[Any],
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
    find: Callable[[torch.device, Callable[[Sequence[int]], CapturedGraph]], CachedGraph | None],
) -> TensorFunction | None:
    """Return the function of a cached captured module, or None.

    Where it must be compiled again (a constant parameter changed, PyTorch's precision did), autograd traces it after
    all.
    """
    device, later = device_of(arguments), LazyGraph(module, arguments)

    def import_graph(constants: Mapping[int, torch.Tensor]) -> CapturedGraph:
        return graph_of_nodes(later.graph, constants, True)

    found = find(device, lambda numbers: import_graph({n: frozen[n] for n in numbers}))
    if found is None:
        return None
    known = [function_of_signature(found.ends, device, found.compiled, held)]

    def compile_with(constants: Mapping[int, torch.Tensor]) -> TensorFunction:
        return known.pop() if known else function_of_tensors(import_graph(constants), device, compile_graph, held)

    constants = {n: frozen[n] for n in found.frozen}
    updates = bool(found.updated)
    function = FrozenFunction(compile_with, constants, updates) if constants else compile_with({})
    return updating(function, found.updated)


def _compile_stages(
    graph: torch.fx.Graph,
    device: torch.device,
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
    cause: CutsError,
) -> CompiledStages | None:
    """Compile a graph of autograd in parts, where some of it can be; `cause` is the error of the whole."""

    def compile_captured(captured: CapturedGraph, device: Any) -> ArrayFunction | Choice:
        return compile_graph(evolve(captured, is_last=False), device)

    def compile_part(part: torch.fx.Graph) -> Callable[..., list[Any]]:
        real = with_real_borders(part, frozen_inputs(part, frozen))
        return _compile_checked(real, device, compile_captured, held, frozen)

    with unset_fake_temporarily():
        return compile_stages(graph, device, frozen_inputs(graph, frozen), compile_part, cause=cause)


def _compile_computed(
    graph: torch.fx.Graph,
    device: torch.device,
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> Callable[..., list[Any]] | None:
    """Compile a graph of autograd with computed sizes, where it is one that can be."""

    places = {place for place, number in module_numbers(graph).items() if number in held}

    def compile_captured(captured: CapturedGraph) -> Callable[..., list[Any]]:
        return function_of_tensors(evolve(captured, is_last=False), device, compile_graph, places)

    with unset_fake_temporarily():
        try:
            check_devices(graph, device)
            found = compile_computed(graph, compile_captured)
            return found and checked_results(graph, results(graph), found)
        except CutsError as error:
            _LOG.info("cuts: sizes that a graph computes are not followed: %s", error)
            return None


def _boxed_function(graph: torch.fx.Graph, staged: StagedFunction) -> Any:
    """Return stages as a function of a list of arguments, whose results are checked like those of one plan."""

    def call(*arguments: Any) -> list[Any]:
        return staged(list(arguments))

    def call_boxed(arguments: list[Any]) -> list[Any]:
        return staged(arguments)

    checked = checked_results(graph, results(graph), call)
    if checked is not call:
        return make_boxed_func(checked)
    call_boxed._boxed_call = True  # type: ignore[attr-defined]
    return call_boxed


def _compile_checked(
    real: RealGraph,
    device: torch.device,
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> Callable[..., list[Any]]:
    """Compile a graph of autograd, whose results are checked where `CUTS_VERIFY` asks for it."""
    function = _compile_graph(real.graph, device, compile_graph, held, frozen)
    return real.wrap(checked_results(real.graph, results(real.graph), function))


def _compile_graph(
    graph: torch.fx.Graph,
    device: torch.device,
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> TensorFunction:
    """Compile a graph of autograd; `held` and `frozen` are inputs of the captured module, by number."""
    check_devices(graph, device)
    places = {place for place, number in module_numbers(graph).items() if number in held}

    def compile_with(constants: Mapping[int, torch.Tensor]) -> TensorFunction:
        return function_of_tensors(graph_of_nodes(graph, constants, True), device, compile_graph, places)

    constants = frozen_inputs(graph, frozen)
    return FrozenFunction(compile_with, constants, bool(updated_inputs(graph))) if constants else compile_with({})
