"""Decoders of transformers: a token at a time, and prompts.

    python -m cuts.bench llm --model llama-1b --batch 1 --prompts 512 2040            # on a GPU, bf16
    python -m cuts.bench llm --model tiny --device cpu --length 64 --prompts 16       # through OpenCL, f32

Weights are random, the cache is static, and tokens stay on the device. On a GPU the time is that of a captured CUDA
graph's replay, for `inductor` as in its mode reduce-overhead, or of calls that follow one another, if these take less.
`share` is that of a copy's bandwidth, for the bytes of weights and filled cache, `equal` that of the first system's
tokens; `--errors` prints errors of scores against f32, as random weights give near ties. `--profile` prints kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from cuts.bench.tools.records import RESULTS, Row, circumstances, keep_row
from cuts.compile.torch_backend import cuts_backend
from cuts.ir import CutsError, UsageError

from .language_models import CONFIGS, CachedDecoder, make_config

#: Part of the cache that is filled when a token is timed.
FILLED_SHARE = 0.75
#: Tokens that are compared after a prompt, tokens of a timing, and timings of a task.
COMPARED_TOKENS, TIMED_TOKENS, ROUNDS = 8, 10, 7
#: Bits of a number in each format of weights; None where they stay as they are.
WEIGHT_BITS = {None: None, "int8": 8, "int4": 4, "fp8": 8}
Step = Callable[[torch.Tensor], torch.Tensor]
gpu: Any = torch.cuda


def step_of(decoder: Step, system: str, budget: float | None, weights: str | None) -> Step:
    """Return a step of a decoder as a system runs it."""
    options: dict[str, Any] = {"budget": budget} if budget else {}
    options |= {"freeze": True, "weights": weights} if weights else {}
    if system == "eager":
        return decoder
    if system == "inductor":
        return torch.compile(decoder, dynamic=False)
    return torch.compile(decoder, backend=cuts_backend, dynamic=False, options=options)


def greedy(decoder: CachedDecoder, step: Step, prompt: torch.Tensor) -> torch.Tensor:
    """Return the tokens that follow a prompt."""
    decoder.move_to(0)
    found = [step(prompt).clone()]
    for _ in range(COMPARED_TOKENS - 1):
        found.append(step(found[-1].clone()).clone())
    return torch.cat(found, 1)


def score_error(decoder: CachedDecoder, config: Any, scores: Step, prompt: torch.Tensor) -> float:
    """Return the greatest error of scores against f32, in deviations."""
    exact = CachedDecoder(config, len(prompt), decoder.length, str(prompt.device), torch.float32)
    exact.model.load_state_dict(decoder.model.state_dict())
    wanted = exact.scores(prompt)
    decoder.move_to(0)
    return ((scores(prompt).float() - wanted).square().mean(1).sqrt() / wanted.std(1)).amax().item()


def milliseconds(decoder: CachedDecoder, call: Callable[[], Any], position: int, count: int) -> float:
    """Return the median time of a call, in rounds of `count` calls."""
    if not next(decoder.parameters()).is_cuda:
        return _round_times(decoder, call, position, count, perf_counter) * 1e3
    times = [_round_times(decoder, call, position, count, None)]
    try:
        decoder.move_to(position)
        times.append(_round_times(decoder, _graph_of(call), position, count, None))
    except RuntimeError as error:
        print(f"not captured: {str(error)[:200]}", file=sys.stderr)
    return min(times)


def _round_times(
    decoder: CachedDecoder, call: Callable[[], Any], position: int, count: int, clock: Callable[[], float] | None
) -> float:
    """Return the median time of a call, by a clock or in milliseconds by events."""
    times = []
    for _ in range(ROUNDS):
        decoder.move_to(position)
        marks = [] if clock else [gpu.Event(enable_timing=True) for _ in range(2)]
        start = clock() if clock else marks[0].record()
        for _ in range(count):
            call()
        if clock:
            times.append((clock() - start) / count)
            continue
        marks[1].record()
        marks[1].synchronize()
        times.append(marks[0].elapsed_time(marks[1]) / count)
    return statistics.median(times)


def _graph_of(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call as the replay of a CUDA graph."""
    stream, graph = gpu.Stream(), gpu.CUDAGraph()
    torch.cuda.synchronize()
    with gpu.stream(stream), gpu.graph(graph, stream=stream):
        call()
    torch.cuda.synchronize()
    return lambda: graph.replay()


def copy_bandwidth(device: str) -> float:
    """Return the bytes per second, read and written, of a large copy."""
    source = torch.empty(1 << (29 if device == "cuda" else 22), dtype=torch.int8, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(ROUNDS):
        start = perf_counter()
        for _ in range(TIMED_TOKENS):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((perf_counter() - start) / TIMED_TOKENS)
    return 2 * source.numel() / min(times)


def print_kernels(call: Callable[[], Any]) -> None:
    """Print the time of each kernel of a call, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    for event in sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:40]:
        print(f"  {event.self_device_time_total:9.1f} us {event.count:5} x {event.key}", file=sys.stderr)


def measure(options: argparse.Namespace, batch: int, compiling_ended: Callable[[], Any]) -> Iterator[Row]:
    """Yield a row for each system and task; all systems compile first."""
    config = make_config(options.model, options.layers)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    decoder = CachedDecoder(config, batch, options.length, options.device, dtype)
    sampled = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocab_size, (batch, max(options.prompts)), generator=sampled).to(options.device)
    prompts = [tokens[:, :n].contiguous() for n in options.prompts]
    steps, found, rows = dict[str, Step](), dict[str, torch.Tensor](), dict[str, Row]()
    for system in options.systems:
        row = {"model": options.model, "layers": config.num_hidden_layers, "batch": batch, "system": system}
        begin, steps[system] = perf_counter(), step_of(decoder, system, options.budget, options.weights)
        try:
            found[system] = torch.cat([greedy(decoder, steps[system], prompt) for prompt in prompts])
        except (RuntimeError, CutsError) as error:
            yield row | {"task": "compiling", "failure": str(error)[:300]}
            continue
        row["compiling"] = perf_counter() - begin
        rows[system] = row | {"equal": (found[system] == found[next(iter(found))]).float().mean().item()}
        if options.errors:
            scores = step_of(decoder.scores, system, options.budget, options.weights)
            rows[system]["error"] = score_error(decoder, config, scores, prompts[0])
    held = compiling_ended()
    bandwidth, filled = copy_bandwidth(options.device), int(options.length * FILLED_SHARE)
    for system, row in rows.items():
        token = partial(steps[system], tokens[:, :1].contiguous())
        ms = milliseconds(decoder, token, filled, TIMED_TOKENS)
        moved = decoder.bytes_per_token(WEIGHT_BITS[options.weights] if system == "cuts" else None, FILLED_SHARE)
        yield row | {"task": "token", "ms": ms, "tokens_per_s": batch / ms * 1e3, "share": moved / bandwidth / ms * 1e3}
        for prompt in prompts:
            ms = milliseconds(decoder, partial(steps[system], prompt), 0, 1)
            yield row | {"task": f"prompt {prompt.shape[1]}", "ms": ms, "tokens_per_s": prompt.numel() / ms * 1e3}
        for call in (token, *(partial(steps[system], prompt) for prompt in prompts)) if options.profile else ():
            decoder.move_to(0)
            print(f"kernels of {system}, {call.args[0].shape[1]} tokens of {batch} sequences", file=sys.stderr)
            print_kernels(call)
    del held


def keep(row: Row, options: argparse.Namespace) -> None:
    """Add a row to the file of results."""
    ours = row["system"] == "cuts"
    name = " ".join(filter(None, (f"{row['model']} x{row['layers']}", row["task"], ours and options.weights)))
    facts = {"suite": "llm", "class": row["system"], "name": name, "precision": "bf16", "budget_s": options.budget}
    facts |= {"cuts_ms": row.get("ms")} if ours else {"peers": {row["system"]: row.get("ms")}}
    facts |= {field: row[field] for field in ("batch", "ms", "share", "equal", "compiling", "failure") if field in row}
    keep_row(options.out, facts | circumstances(torch.cuda.get_device_name()))


def line(row: Row) -> str:
    """Return a row as a line of text."""
    label = f"{row['model']} x{row['layers']} b{row['batch']:<3} {row['system']:<9}{row['task']:<12}"
    if "failure" in row:
        return f"{label} failed: {row['failure']}"
    share = f"  share {row['share']:.3f}" if "share" in row else ""
    facts = f"{row['ms']:9.3f} ms {row['tokens_per_s']:11.0f} tokens/s{share}"
    error = f"  error {row['error']:.4f}" if "error" in row else ""
    return f"{label}{facts}  equal {row['equal']:.2f}{error}  compiled in {row['compiling']:.1f} s"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(CONFIGS), default="llama-1b")
    parser.add_argument("--layers", type=int, metavar="N", help="fewer layers than the model has")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--prompts", type=int, nargs="+", default=[512], metavar="TOKENS")
    parser.add_argument("--length", type=int, default=2048, help="of the cache")
    parser.add_argument("--systems", nargs="+", choices=("eager", "inductor", "cuts"), default=["eager", "cuts"])
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of tuning, for each graph")
    parser.add_argument("--weights", choices=tuple(filter(None, WEIGHT_BITS)), help="format of the weights of `cuts`")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "llm.json", help="file that keeps rows of a GPU")
    parser.add_argument("--errors", action="store_true", help="of scores, against a run in f32")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    longest = max(int(options.length * FILLED_SHARE) + TIMED_TOKENS, max(options.prompts) + COMPARED_TOKENS)
    if longest > options.length:
        raise UsageError(f"--length {options.length}: expected a cache for {longest} tokens at least")
    return options


def main(compiling_ended: Callable[[], Any] = lambda: None) -> int:
    """Print a line for each row; return 1 where one failed.

    `compiling_ended` is called before anything is timed.
    """
    options, failed = arguments(), 0
    torch._dynamo.config.recompile_limit = 64
    with torch.no_grad():
        for batch in options.batch:
            for row in measure(options, batch, compiling_ended):
                failed += "failure" in row
                print(line(row), flush=True)
                if options.device == "cuda":
                    keep(row, options)
    return int(failed > 0)
