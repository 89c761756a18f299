"""Runs one of the measurements: `python -m cuts.bench NAME [options]`.

Without a name, lists them.
"""

from __future__ import annotations

import sys
from importlib import import_module

from cuts.bench.tools.records import exit_code

#: Module of each name, and its purpose.
COMMANDS = {
    "ops": ("operators.ops", "single operations beside cuBLASLt, cuDNN, PyTorch and torch.compile"),
    "breadth": ("operators.breadth", "operations of the vocabulary, with gradients, beside torch.compile"),
    "winners": ("operators.winners", "launches tuned kernels once, for compute-sanitizer"),
    "networks": ("networks.command", "the evaluation of DeepCuts: models in any precision beside their peers"),
    "llm": ("networks.llm", "decoders of transformers, a token at a time, beside eager PyTorch and Inductor"),
    "door": ("networks.door", "wall time of calls through torch.compile"),
    "steps": ("training.command", "training steps through torch.compile, with peak memory"),
    "cluster": ("networks.cluster_run", "cluster plans larger than the device memory"),
    "beyond": ("networks.beyond_memory", "inference and training of models beyond one GPU's memory"),
    "audit": ("tools.audit", "times whole schedule spaces to validate the pruning"),
    "spaces": ("tools.record_spaces", "records schedule spaces for strategy replay"),
    "fit-rank": ("tools.fit_rank", "calibrates the cost model on measured kernels"),
    "paper": ("paper.command", "tables and figures of the four documents"),
    "compile_time": ("tools.compile_time", "CPU seconds of compilations by stage"),
    "stale": ("tools.records", "marks result rows that are older than the kernels they describe"),
}


def main() -> int:
    """Run the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        print("usage: python -m cuts.bench NAME [options]\n")
        print("\n".join(f"  {known:<12} {purpose}" for known, (_, purpose) in COMMANDS.items()))
        return int(name not in ("", "-h", "--help"))
    try:
        module = import_module(f"cuts.bench.{COMMANDS[name][0]}")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("cuts."):
            raise
        print(f"cuts.bench {name} needs {error.name}, which is in the checkout only", file=sys.stderr)
        return 4
    sys.argv = [f"{sys.argv[0]} {name}", *sys.argv[2:]]
    return exit_code(module.main)


if __name__ == "__main__":
    sys.exit(main())
