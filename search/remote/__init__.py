"""Searches on several devices of one host, or on those of many hosts: whole problems are shared out."""

from .dask_workers import DaskWorkers
from .device_processes import DeviceProcesses
from .share_out import SearchEngine, ShareOut

__all__ = ["DaskWorkers", "DeviceProcesses", "SearchEngine", "ShareOut"]
