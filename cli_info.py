"""`cuts device`, `cuts cache` and `cuts ops`: what this machine and this vocabulary have."""

from __future__ import annotations

from argparse import Namespace

from attrs import asdict

from . import console
from .backends.cache import cache_info, clear_cache
from .backends.calibrate import load_ceilings, measure_ceilings, save_ceilings
from .backends.cuda_compile import toolchains
from .backends.device import open_device
from .backends.targets import find_target, known_targets
from .driver import load_spec
from .ir.errors import BackendError
from .ops.manual import entry, manual


def device_command(arguments: Namespace) -> int:
    """Show devices, compilers and known targets, or all that is known of one target; measure ceilings where that is asked for."""
    if arguments.calibrate:
        values = _calibrate(arguments.target or "cuda:device")
    elif arguments.target:
        values = asdict(find_target(arguments.target))
    else:
        values = {"devices": _devices(), "compilers": [f"{tool.name} {tool.version}" for tool in toolchains()], "targets": known_targets()}
    if arguments.json:
        console.print_json(values)
        return 0
    for key, value in values.items():
        lines = [console.brief(item, 300) for item in value] if isinstance(value, (list, tuple)) else [console.brief(value)]
        print(f"{key}: {lines[0] if len(lines) == 1 else ''}" + ("".join(f"\n  {line}" for line in lines) if len(lines) > 1 else ""))
    return 0


def _calibrate(target: str) -> dict[str, object]:
    """Measure a device and keep what was found; `asdict` of the ceilings is what is shown."""
    device = open_device(find_target(target))
    ceilings = measure_ceilings(device)
    kept = save_ceilings(ceilings)
    return asdict(ceilings) | {"kept": str(kept) if kept else "nowhere: caching is switched off"}


def _devices() -> list[dict[str, object]]:
    found = []
    for name in ("opencl", "cuda:device"):
        try:
            described = open_device(find_target(name)).describe()
            ceilings = load_ceilings(str(described["name"]))
            found.append(described | ({"ceilings": asdict(ceilings)} if ceilings else {}))
        except BackendError as error:
            found.append({"dialect": name.partition(":")[0], "missing": error.message})
    return found


def cache_command(arguments: Namespace) -> int:
    """Show or empty the cache of compiled kernels."""
    values = cache_info() if arguments.action == "info" else {"removed": clear_cache()}
    if arguments.json:
        console.print_json(values)
    else:
        print("\n".join(f"{key}: {console.brief(value, 200)}" for key, value in values.items()))
    return 0


def ops_command(arguments: Namespace) -> int:
    """List the operations of the vocabulary, or show one declaration."""
    registry = load_spec(arguments.spec).registry
    if arguments.markdown:
        print(manual(registry), end="")
        return 0
    if arguments.name:
        decl = registry[arguments.name]
        text = decl.text
        values = {"name": decl.name, "family": decl.family, "summary": decl.summary, "declared": decl.span.position, "text": text}
        if arguments.json:
            console.print_json(values)
        else:
            print(f"{decl.name} ({decl.span.position})\n\n{entry(decl, registry)}")
        return 0
    if arguments.json:
        console.print_json({"ops": [{"name": d.name, "family": d.family, "summary": d.summary} for d in registry.values()]})
        return 0
    rows = [[decl.name, decl.family or "-", decl.summary] for decl in registry.values()]
    console.out().print(console.table(f"{len(rows)} operations", ["op", "family", "summary"], rows))
    return 0
