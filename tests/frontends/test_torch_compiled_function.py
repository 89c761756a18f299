"""Compiled functions of PyTorch: in-place inputs and outputs.

They run on the CPU through OpenCL, and on a GPU.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.backends import find_target
from cuts.backends.opencl import OpenCLDevice
from cuts.compile import cached_build as tuned
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch import compiled_function as door_module
from cuts.frontends.torch.compiled_function import CompiledFunction
from cuts.frontends.torch.dynamo_backend import dynamo
from cuts.frontends.torch.dynamo_backend.frozen import FrozenWarning
from cuts.ir import BackendError, CutsError, UsageError
from cuts.runtime import ExternalSession
from cuts.tests.needs import cuda_reason, needs_c_compiler, needs_cuda, needs_opencl, opencl_reason

nn = torch.nn
#: Tracing warns about PyTorch's own insides; that a graph stays in PyTorch is a failure here.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
    pytest.mark.usefixtures("dynamo_afresh"),
]

_NO_CUDA = cuda_reason() or ("" if torch.cuda.is_available() else "this PyTorch has no CUDA")
PLACES = [
    pytest.param("cpu", marks=(pytest.mark.opencl, pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason()))),
    pytest.param("cuda", marks=(pytest.mark.cuda, pytest.mark.skipif(bool(_NO_CUDA), reason=_NO_CUDA))),
]
#: Filter of the warning that a graph on the CPU stays in PyTorch, as it does without OpenCL.
_ELSEWHERE = "ignore" if opencl_reason() else "error"
everywhere = pytest.mark.parametrize("place", PLACES)


def on_gpu(test: Any) -> Any:
    """Mark a test that needs a GPU."""
    return needs_cuda(pytest.mark.skipif(bool(_NO_CUDA), reason=_NO_CUDA)(test))


class Small(nn.Module):
    """A convolution, a norm, a residual sum and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4 * 36, 5)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.norm(self.first(x)))
        return self.last((h + h.mean(1, keepdim=True)).flatten(1))


def small(place: str) -> Any:
    model = Small().eval()
    model.norm.running_mean.uniform_(-1, 1)
    model.norm.running_var.uniform_(0.5, 2)
    return model.to(place)


def image(place: str, batch: int = 2) -> Any:
    return torch.randn(batch, 3, 6, 6, device=place)


def compile_model(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=cuts_backend, options=options, fullgraph=True, dynamic=False)


def near(found: Any, expected: Any) -> bool:
    return bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-5))


# ---- inputs


def layouts(x: Any) -> dict[str, Any]:
    """Return tensors of one shape and many layouts, some not dense."""
    wide = torch.randn(*x.shape[:-1], 2 * x.shape[-1], device=x.device)
    odd = torch.randn(x.numel() + 1, device=x.device)
    return {
        "dense": x,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "every second": wide[..., ::2],
        "transposed": x.transpose(2, 3),
        "four bytes off": odd[1:].view(x.shape),
        "one element for all": torch.randn((), device=x.device).expand(x.shape),
    }


@everywhere
def test_inputs_lie_in_memory_as_they_like(place: str) -> None:
    model = small(place)
    call = compile_model(model)
    with torch.no_grad():
        for name, x in layouts(image(place)).items():
            assert near(call(x), model(x)), name


@everywhere
def test_dense_inputs_are_read_in_place(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []
    launch = ExternalSession.launch

    def record(self: Any, fixed: Any, moving: Any, *rest: Any) -> None:
        seen.append((set(fixed), set(moving)))
        launch(self, fixed, moving, *rest)

    monkeypatch.setattr(ExternalSession, "launch", record)
    model, x = small(place), image(place)
    with torch.no_grad():
        y = compile_model(model)(x)
    ((fixed, moving),) = seen
    assert {x.data_ptr(), y.data_ptr()} == moving
    assert {p.data_ptr() for p in (*model.parameters(), *model.buffers()) if p.dim()} <= fixed


@everywhere
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["held", "frozen"])
def test_channels_may_lie_last(place: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Read dense tensors in place for any order of axes."""
    copies: list[Any] = []
    readable = door_module.readable
    monkeypatch.setattr(door_module, "readable", lambda t: (copies.append(t) if readable(t) is not t else None, t)[1])
    model, x = small(place), image(place)
    with torch.no_grad():
        expected = model(x)
        model = model.to(memory_format=torch.channels_last)
        call = compile_model(model, **options)
        assert not model.first.weight.is_contiguous()
        assert near(call(x.contiguous(memory_format=torch.channels_last)), expected) and not copies
        monkeypatch.undo()
        model.first.weight.mul_(2)
        assert near(call(x.contiguous(memory_format=torch.channels_last)), model(x))
        assert near(call(x), model(x))


@everywhere
def test_channels_may_lie_last_in_training(place: str) -> None:
    eager = small(place).to(memory_format=torch.channels_last).train()
    ours = copy.deepcopy(eager)
    x, target = image(place).contiguous(memory_format=torch.channels_last), torch.randn(2, 5, device=place)
    for network, call in ((eager, eager), (ours, compile_model(ours))):
        (call(x) - target).square().mean().backward()
        assert all(parameter.grad is not None for parameter in network.parameters())
    for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4)


@everywhere
def test_parameters_may_change_and_move(place: str) -> None:
    model, x = small(place), image(place)
    call = compile_model(model)
    changes: list[Callable[[], object]] = [
        lambda: model.first.weight.mul_(1.5),
        lambda: setattr(model.first.weight, "data", torch.randn_like(model.first.weight)),
        lambda: setattr(model.norm, "running_mean", torch.randn(4, device=place)),
        lambda: setattr(model.first.weight, "data", torch.randn(4 * 27 + 1, device=place)[1:].view(4, 3, 3, 3)),
        lambda: model.load_state_dict(small(place).state_dict()),
    ]
    with torch.no_grad():
        for change in (lambda: None, *changes):
            change()
            assert near(call(x), model(x))


@everywhere
def test_a_tensor_of_another_kind_is_one_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doors: list[Any] = []
    call = CompiledFunction.__call__
    monkeypatch.setattr(
        CompiledFunction, "__call__", lambda self, *given: (doors.append((self, given)), call(self, *given))[1]
    )
    model, x = small(place), image(place)
    with torch.no_grad():
        compile_model(model)(x)
        ((door, given),) = doors
        at = next(n for n, tensor in enumerate(given) if tensor is x)
        for wrong in (x.double(), x[:1], x.to("meta")):
            with pytest.raises(UsageError, match=r"expected torch.float32\[2, 3, 6, 6\] on .*, found"):
                call(door, *given[:at], wrong, *given[at + 1 :])


@needs_opencl
def test_device_with_separate_memory_gets_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenCLDevice, "shares_host_memory", False)
    monkeypatch.setattr(CompiledFunction, "__call__", None)
    model, x = small("cpu"), image("cpu")
    call = compile_model(model)
    with torch.no_grad():
        for _ in range(2):
            assert near(call(x.contiguous(memory_format=torch.channels_last)), model(x))
            model.first.weight.mul_(2)


# ---- outputs


@everywhere
def test_results_survive_later_calls(place: str) -> None:
    model = small(place)
    call = compile_model(model)
    inputs = [image(place) for _ in range(12)]
    with torch.no_grad():
        found = [call(x) for x in inputs]
        assert len({y.data_ptr() for y in found}) == len(found)
        assert all(near(y, model(x)) for x, y in zip(inputs, found, strict=True))


@everywhere
def test_outputs_may_be_inputs_and_each_other(place: str) -> None:
    def views(x: Any, w: Any) -> Any:
        y = torch.relu(x + w)
        return y, y[1:], y.reshape(-1), x, w.t(), x.sum(), torch.full((3,), 2.0, device=x.device), y[:0]

    x, w = torch.randn(3, 3, device=place), torch.randn(3, 3, device=place)
    call = compile_model(views)
    with torch.no_grad():
        found, expected = call(x, w), views(x, w)
        assert all(near(a, b) and a.shape == b.shape for a, b in zip(found, expected, strict=True))


@everywhere
def test_results_go_in_again(place: str) -> None:
    step = lambda x: (x * 1.5 + x.roll(1, 0), x.cumsum(0))  # noqa: E731
    call = compile_model(step)
    x = expected = torch.randn(16, 4, device=place)
    with torch.no_grad():
        for _ in range(5):
            x, _ = call(x)
            expected, _ = step(expected)
        assert near(x, expected)


@everywhere
def test_written_inputs_have_new_values(place: str) -> None:
    def write(x: Any, counter: Any) -> Any:
        counter.add_(1)
        x[1:].copy_(x[:-1].clone())
        return x * counter

    call = compile_model(write)
    ours, theirs = ([torch.arange(6.0, device=place).view(3, 2), torch.zeros(1, device=place)] for _ in range(2))
    for _ in range(3):
        assert near(call(*ours), write(*theirs))
        assert all(near(a, b) for a, b in zip(ours, theirs, strict=True))


@everywhere
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["held", "frozen"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_each_batch_size_has_a_plan(place: str, options: dict[str, object], dynamic: bool | None) -> None:
    """Compile a plan for each batch size.

    Under dynamic shapes, Dynamo passes the numbers of a norm as tensors whose number alone is read.
    """
    model = small(place)
    call = torch.compile(model, backend=cuts_backend, dynamic=dynamic, options=options)
    with torch.no_grad():
        for batch in (2, 5, 1, 2):
            x = image(place, batch)
            assert near(call(x), model(x))
        model.norm.eps = 0.5
        assert near(call(x), model(x))


@everywhere
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda x: (x * 2, x.sum()), True),
        (lambda x: (x * 2, x.view(-1)), False),
        (lambda x: (x, x + 1), True),  # Dynamo gives the input back itself
        (lambda x: x.add_(1) * 2, True),  # the update is a result that is copied
        (lambda x: (x * 2)[1:], True),
        (lambda x: (y := x * 2, y[1:]), True),  # without gradients no base is kept
    ],
)
def test_autograd_wrapper_is_skipped_without_work(
    model: Any, expected: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    decide = dynamo.is_direct
    monkeypatch.setattr(dynamo, "is_direct", lambda *given: found.append(decide(*given)) or found[-1])
    ours, theirs = (torch.arange(6.0, device=place).view(3, 2) for _ in range(2))
    call = compile_model(model)
    with torch.no_grad():
        for _ in range(2):
            results, wanted = call(ours), model(theirs)
            pairs = zip(results, wanted, strict=True) if isinstance(wanted, tuple) else [(results, wanted)]
            assert all(near(a, b) for a, b in pairs) and near(ours, theirs)
    assert found == [expected]


@everywhere
def test_gradients_keep_autograd(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    decide = dynamo.is_direct
    monkeypatch.setattr(dynamo, "is_direct", lambda *given: found.append(decide(*given)) or found[-1])
    x = torch.ones(3, device=place, requires_grad=True)
    compile_model(lambda x: x * x)(x).sum().backward()
    assert found == [False, False] and x.grad.tolist() == [2, 2, 2]


# ---- training


@everywhere
def test_steps_of_training_equal_those_of_pytorch(place: str) -> None:
    eager = small(place).train()
    ours = copy.deepcopy(eager)
    batches = [(image(place), torch.randn(2, 5, device=place)) for _ in range(4)]
    for network, call in ((eager, eager), (ours, compile_model(ours))):
        optimiser = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
        for x, target in batches:
            optimiser.zero_grad()
            (call(x) - target).square().mean().backward()
            optimiser.step()
    for (name, value), wanted in zip(ours.state_dict().items(), eager.state_dict().values(), strict=True):
        assert torch.allclose(value, wanted, rtol=1e-3, atol=1e-4), name


@everywhere
def test_dropout_follows_the_seed_of_pytorch(place: str) -> None:
    call = compile_model(lambda x: nn.functional.dropout(x * 1, 0.25))
    x = torch.ones(64, 64, device=place)
    torch.manual_seed(3)
    first, second = call(x), call(x)
    torch.manual_seed(3)
    assert torch.equal(call(x), first) and not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.03


# ---- threads


@everywhere
def test_threads_share_a_compiled_model(place: str) -> None:
    model = small(place)
    call = compile_model(model)
    inputs = [image(place) for _ in range(6)]
    wrong: list[object] = []
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        call(inputs[0])

    def work(number: int) -> None:
        stream = torch.cuda.Stream() if place == "cuda" else None
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(20):
                found = call(inputs[number])
                if stream is not None:
                    stream.synchronize()
                if not near(found, expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- constants


def replace_weight(model: Any) -> None:
    model.first.weight = nn.Parameter(torch.randn_like(model.first.weight))


@everywhere
def test_a_frozen_model_notices_what_changed(place: str) -> None:
    model, x = small(place), image(place)
    call = compile_model(model, freeze=True)
    changes: list[Callable[[], object]] = [
        lambda: model.first.weight.mul_(1.5),
        lambda: model.norm.running_var.add_(1),
        lambda: setattr(model.last.bias, "data", torch.randn(5, device=place)),
        lambda: replace_weight(model),
        lambda: model.load_state_dict(small(place).state_dict()),
    ]
    with torch.no_grad():
        assert near(call(x), model(x))
        for change in changes:
            change()
            with pytest.warns(FrozenWarning, match="compiled again"):
                assert near(call(x), model(x))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert near(call(x), model(x))


@everywhere
def test_frozen_parameters_are_no_inputs(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    open_ = CompiledFunction._open
    monkeypatch.setattr(CompiledFunction, "_open", lambda *given: opened.append(open_(*given)) or opened[-1])
    model, x = small(place), image(place)
    with torch.no_grad():
        assert near(compile_model(model, freeze=True)(x), model(x))
    (found,) = opened
    assert not found.held and len(found.moving) == 1


@everywhere
def test_written_buffers_of_frozen_models_stay_inputs(place: str) -> None:
    eager = small(place).train()
    ours = copy.deepcopy(eager)
    call = torch.compile(ours, backend=cuts_backend, options={"freeze": True})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FrozenWarning)
        for batch in (2, 2, 3, 4, 4):
            x = image(place, batch)
            assert near(call(x), eager(x))
    assert near(ours.norm.running_mean, eager.norm.running_mean)


@everywhere
def test_gradients_of_a_frozen_model_are_refused(place: str) -> None:
    with pytest.raises(Exception, match="option 'freeze': gradients of the parameters are wanted"):
        compile_model(small(place), freeze=True)(image(place))


# ---- recordings


def fixed_addresses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Return the list of fixed addresses of launches."""
    seen: list[tuple[int, ...]] = []
    original = ExternalSession.launch

    def record(self: Any, fixed: Any, *given: Any) -> None:
        seen.append(tuple(fixed))
        original(self, fixed, *given)

    monkeypatch.setattr(ExternalSession, "launch", record)
    return seen


@everywhere
def test_a_recorded_call_has_memory_of_its_own(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = fixed_addresses(monkeypatch)
    model, x = small(place), image(place)
    call = compile_model(model)
    with torch.no_grad():
        call(x)
        with monkeypatch.context() as patched:
            patched.setattr(door_module, "is_capturing", lambda device: True)
            assert near(call(x), model(x))
        assert near(call(x), model(x))
    plain, captured, again = launched
    assert plain == again and captured[0] == plain[0] and captured[1] != plain[1]


@everywhere
def test_calls_do_not_keep_large_scratch_memory(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "MAX_KEPT_SCRATCH_BYTES", {})
    model, x = small(place), image(place)
    call = compile_model(model)
    made: list[weakref.ref[Any]] = []
    new = CompiledFunction._new_scratch

    def record(self: Any, running: Any) -> Any:
        scratch = new(self, running)
        made.append(weakref.ref(scratch))
        return scratch

    monkeypatch.setattr(CompiledFunction, "_new_scratch", record)
    with torch.no_grad():
        for _ in range(3):
            assert near(call(x), model(x))
    assert len(made) == 3 and not any(each() is not None for each in made)


@everywhere
def test_a_first_call_cannot_be_recorded(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "is_capturing", lambda device: True)
    with torch.no_grad(), pytest.raises(BackendError, match="call the model once before"):
        compile_model(small(place))(image(place))


# ---- later processes


@everywhere
@pytest.mark.parametrize("freeze", [False, True])
def test_a_later_process_finds_the_plan(
    place: str, freeze: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuned, "MIN_CACHED_BUILD_SECONDS", 0.0)
    model, x = small(place), image(place)
    with torch.no_grad():
        first = compile_model(model, freeze=freeze)(x)
        torch._dynamo.reset()
        monkeypatch.setattr(tuned, "build_tuned", None)
        assert torch.equal(compile_model(model, freeze=freeze)(x), first)
        model.first.weight.add_(1)
        torch._dynamo.reset()
        monkeypatch.undo()
        assert near(compile_model(model, freeze=freeze)(x), model(x))


# ---- GPU only


@on_gpu
def test_a_call_waits_for_nothing() -> None:
    model, x = small("cuda"), image("cuda")
    call = compile_model(model)
    with torch.no_grad():
        expected = call(x)
        torch.cuda.synchronize()
        torch.cuda._sleep(int(2e9))  # about a second
        start = time.perf_counter()
        found = [call(x) for _ in range(5)]
        assert time.perf_counter() - start < 0.3
        assert all(torch.equal(y, expected) for y in found)


@on_gpu
def test_a_call_runs_on_the_current_stream() -> None:
    """Order a call with earlier and later work of its stream.

    Other streams are not synchronised.
    """
    model = small("cuda")
    call = compile_model(model)
    with torch.no_grad():
        xs = [image("cuda") for _ in range(4)]
        expected = [model(x) for x in xs]
        call(xs[0])
        streams = [torch.cuda.Stream() for _ in xs]
        torch.cuda.synchronize()
        found = []
        for _ in range(10):
            found = []
            for x, stream in zip(xs, streams, strict=True):
                with torch.cuda.stream(stream):
                    late = torch.zeros_like(x)
                    torch.cuda._sleep(200_000)
                    late.copy_(x)
                    found.append(call(late).clone())
        torch.cuda.synchronize()
        assert all(near(a, b) for a, b in zip(found, expected, strict=True))


@on_gpu
def test_a_call_can_be_recorded() -> None:
    model, x = small("cuda"), image("cuda")
    call = compile_model(model)
    with torch.no_grad():
        call(x)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = call(x)
            z = call(y.mean() + x)
        for _ in range(3):
            x.copy_(image("cuda"))
            graph.replay()
            assert near(y, model(x))
            assert near(z, model(y.mean() + x))


@on_gpu
def test_a_recording_runs_beside_calls() -> None:
    model, x, other = small("cuda"), image("cuda"), image("cuda")
    call = compile_model(model)
    side = torch.cuda.Stream()
    with torch.no_grad():
        wanted, wanted_other = model(x), model(other)
        call(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                y = call(x)
        torch.cuda.synchronize()
        for _ in range(5):
            with torch.cuda.stream(side):
                graph.replay()
            found = [call(other) for _ in range(20)]
            torch.cuda.synchronize()
            assert near(y, wanted) and all(near(f, wanted_other) for f in found)


@on_gpu
@needs_opencl
@pytest.mark.filterwarnings(f"{_ELSEWHERE}::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning")
def test_a_model_moves_between_devices() -> None:
    model = small("cpu")
    call = compile_model(model)
    with torch.no_grad():
        for place in ("cuda", "cpu", "cuda"):
            model.to(place)
            x = image(place)
            found = call(x)
            assert found.device.type == place and near(found, model(x))
        with pytest.raises(Exception, match="device"):
            call(image("cpu"))


@on_gpu
def test_memory_of_dropped_outputs_is_used_again() -> None:
    model, x = small("cuda"), image("cuda")
    call = compile_model(model)
    with torch.no_grad():
        call(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            call(x)
        assert torch.cuda.memory_allocated() == before


@on_gpu
def test_deleted_model_releases_its_memory() -> None:
    import gc

    def use() -> None:
        model, x = small("cuda"), image("cuda")
        with torch.no_grad():
            compile_model(model)(x)
        torch._dynamo.reset()

    use()
    gc.collect()
    before = torch.cuda.memory_allocated()
    use()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before


@on_gpu
def test_libraries_take_part(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute correctly through libraries.

    Some inputs change their address, and parameters do not.
    """
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to("cuda")
    call = compile_model(model, libraries=True, budget=10)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(128, 256, device="cuda")
            assert torch.allclose(call(x), model(x), rtol=1e-3, atol=1e-4)


@needs_c_compiler()
def test_a_plan_for_another_architecture_is_refused() -> None:
    from cuts.backends.cuda import CudaSequenceLauncher
    from cuts.tests.backends.fake_driver import FakeDriver

    with pytest.raises(CutsError, match="the plan is for sm_80, device 0 is sm_90"):
        CudaSequenceLauncher(find_target("cuda:sm_80"), 0, FakeDriver())
