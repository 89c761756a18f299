"""Searches on the devices of many hosts: whole problems are shared out."""

from .dask_workers import DaskWorkers
from .share_out import SearchEngine, ShareOut

__all__ = ["DaskWorkers", "SearchEngine", "ShareOut"]
