"""Generate text with a decoder of transformers, its cache on the device.

Run `python examples/decode.py` for a tiny decoder, and `python examples/decode.py --model qwen3-0.6b` on a GPU; the
package `transformers` has to be installed. Weights are random, so the tokens mean nothing. With `--checkpoint` they are
those of a folder of compressed-tensors, torchao or plain safetensors, or of a GGUF file; quantised ones stay packed.

Two functions share one cache. One takes prompts: a plan serves all lengths up to a power of two, and computes with the
true length. The other one takes a token and returns the next; position, cache and token never visit the host.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from cuts.bench.networks.language_models import CONFIGS, CachedDecoder, make_config
from cuts.frontends.torch import load_checkpoint
from cuts.ir import POLICIES

Step = Callable[[torch.Tensor], torch.Tensor]


def stream(
    decoder: CachedDecoder, read_prompt: Step, next_token: Step, prompt: torch.Tensor, count: int
) -> Iterator[int]:
    """Yield the tokens that follow a prompt [1, S]."""
    decoder.move_to(0)
    torch._dynamo.mark_dynamic(prompt, 1, min=2, max=decoder.length)
    token = read_prompt(prompt)
    for _ in range(count - 1):
        following = next_token(token.clone())  # starts before the host reads the token
        yield int(token)
        token = following
    yield int(token)


def main() -> None:
    """Read prompts of several lengths, and print tokens and their rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(CONFIGS), default="tiny")
    parser.add_argument("--checkpoint", metavar="FOLDER|GGUF", help="weights that are not random")
    parser.add_argument("--prompts", type=int, nargs="+", default=[5, 7, 12], metavar="TOKENS")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--length", type=int, default=64, help="of the cache")
    parser.add_argument(
        "--policy", choices=POLICIES, default=POLICIES[0], help="batch-invariant: equal bits in any batch"
    )
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = load_checkpoint(options.checkpoint, dtype, device) if options.checkpoint else None
    config = make_config(options.model) if model is None else model.config
    decoder = CachedDecoder(config, 1, options.length, device, dtype, model)
    policy = {"policy": options.policy}
    read_prompt = torch.compile(decoder, backend="cuts", options={"buckets": True, **policy})
    next_token = torch.compile(decoder.forward, backend="cuts", options={"freeze": model is not None, **policy})
    with torch.no_grad():
        for length in options.prompts:
            prompt = torch.randint(decoder.vocabulary, (1, length)).to(device)
            begin, tokens, times = perf_counter(), list[int](), list[float]()
            for token in stream(decoder, read_prompt, next_token, prompt, options.tokens):
                tokens.append(token)
                times.append(perf_counter())
            rate = (len(tokens) - 2) / (times[-1] - times[1])
            moved = rate * decoder.bytes_per_token() / 1e9
            print(f"prompt of {length}: first token after {times[0] - begin:.3f} s, then {rate:.0f} tokens/s, ", end="")
            print(f"{moved:.1f} GB/s of weights and cache\n  {' '.join(map(str, tokens))}", flush=True)


if __name__ == "__main__":
    main()
