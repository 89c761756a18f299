"""What a declaration means: reading, checking, and every derivation from it."""

from .declaration import OpDecl
from .instantiate import Instance
from .registry import Registry, UnknownOp

__all__ = ["Instance", "OpDecl", "Registry", "UnknownOp"]
