"""Routines of vendors' libraries as alternatives to generated kernels.

A library step is a `KernelFunction` like any other: its dialect is "library", its source names the library and holds
the group that the routine computes, in text form. So plans store it, sessions bind and launch it and CUDA graphs record
it like a generated kernel.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from attrs import field, frozen

from ...ir import Argument, BackendError, CutsError, KernelFunction, Storage
from ...store import digest_parts
from ..device import Device, Launch, Pointer

if TYPE_CHECKING:
    from ...ir import FusedGroup

#: The dialect of library steps.
DIALECT = "library"
#: Libraries by name: the module of this package that wraps each. Their Python packages are optional.
MODULES: Mapping[str, str] = {"cublas": ".cublas", "cudnn": ".cudnn"}
#: Packages that these import, and distributions that install them and the libraries.
PACKAGES = ("nvmath", "cudnn")
DISTRIBUTIONS = (
    "nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12",
    "nvidia-cudnn-frontend", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
)  # fmt: skip


class RoutineError(BackendError):
    """A library is missing, or has no routine for a group."""


@frozen
class Request:
    """Request to a library: a group, and the storage of its tensors.

    Tensors without a storage are dense. The contents of `constants` never change, so they may be copied to a layout
    that the library prefers.
    """

    group: FusedGroup
    storages: Mapping[str, Storage] = field(factory=dict)
    constants: Collection[str] = ()


class Library(ABC):
    """Library that computes some groups unchanged, in the precision of their types."""

    name: str

    @property
    @abstractmethod
    def version(self) -> str:
        """Library's version, as reports show it."""

    @abstractmethod
    def supports(self, request: Request) -> bool:
        """Return whether the library computes exactly this group in these layouts."""

    @abstractmethod
    def prepare(self, device: Device, request: Request, places: Mapping[str, Pointer]) -> Launch:
        """Return the launch of the library's fastest algorithm.

        Tensors are at the given addresses; constants are stored there already.
        """

    def kernel(self, request: Request) -> KernelFunction:
        """Return the library step that computes a supported group."""
        from ...ir import print_ir

        group = request.group
        tensors = (*group.inputs, *group.outputs)
        kept = {t: print_ir(request.storages[t]) for t in tensors if t in request.storages}
        record = {
            "library": self.name,
            "group": print_ir(group),
            "storages": kept,
            "constants": sorted(request.constants),
        }
        source = json.dumps(record, indent=1)
        arguments = tuple(Argument(t, group.tensors[t].dtype, t in group.outputs) for t in tensors)
        name = f"{self.name}_{digest_parts([source])[:12]}"
        info = {"library": f"{self.name} {self.version}"}
        return KernelFunction(name, DIALECT, source, (1, 1, 1), (1, 1, 1), arguments, info=info)


class Routine:
    """Library step, parsed from its text and ready to be bound."""

    def __init__(self, kernel: KernelFunction) -> None:
        from ...ir import FusedGroup, parse_ir  # classes of the compiler, which few plans need

        try:
            record = json.loads(kernel.source)
            library, group = str(record["library"]), parse_ir(str(record["group"]), kernel.name)
            constants = frozenset(map(str, record["constants"]))
            storages = {str(t): parse_ir(str(text), kernel.name) for t, text in record["storages"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, CutsError) as error:
            raise BackendError(
                f"library step {kernel.name} cannot be read: {error}", hint="compile the model again"
            ) from error
        if not isinstance(group, FusedGroup):
            raise BackendError(f"library step {kernel.name} holds no group", hint="compile the model again")
        self.library = require_library(library)
        self.request = Request(group, {t: s for t, s in storages.items() if isinstance(s, Storage)}, constants)

    def bind(self, device: Device, kernel: KernelFunction, pointers: Sequence[Pointer]) -> Launch:
        """Return the launch of the routine on the given tensors."""
        places = {argument.tensor: pointer for argument, pointer in zip(kernel.arguments, pointers, strict=True)}
        return self.library.prepare(device, self.request, places)


@cache
def libraries() -> tuple[Library, ...]:
    """Return the libraries whose packages are installed and usable here."""
    found = []
    for name in MODULES:
        try:
            found.append(require_library(name))
        except BackendError:
            continue
    return tuple(found)


@cache
def require_library(name: str) -> Library:
    """Return a library by its name.

    Raises `RoutineError` where no library has that name, or it is missing.
    """
    if name not in MODULES:
        raise RoutineError(f"unknown library '{name}'", hint=f"libraries are: {', '.join(MODULES)}")
    module = import_module(MODULES[name], __package__)
    library: Library = module.open_library()
    return library


def library_kernels(request: Request) -> list[KernelFunction]:
    """Return all library steps for a group, as candidates beside generated kernels."""
    if not is_library_computation(request):
        return []
    return [library.kernel(request) for library in libraries() if library.supports(request)]


def is_library_computation(request: Request) -> bool:
    """Return whether a group is a plain product or convolution.

    No library is imported for that.
    """
    from .recognise import find_convolution, find_product

    asked = request.group, request.storages
    return find_product(*asked) is not None or find_convolution(*asked) is not None


@cache
def installed_libraries() -> tuple[str, ...]:
    """Return installed libraries with versions.

    It is empty where none of their packages can be imported; none is imported, as that takes a second.
    """
    if not any(find_spec(package) for package in PACKAGES):
        return ()
    from importlib import metadata

    found = []
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return tuple(found) or PACKAGES


def missing_library(kernel: KernelFunction) -> str:
    """Return why a library step cannot run here, else empty."""
    try:
        Routine(kernel)
    except RoutineError as error:
        return error.message
    return ""
