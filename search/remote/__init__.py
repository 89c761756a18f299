"""Searches on the devices of many hosts, which get whole tasks."""

from .dask_workers import DaskWorkers
from .share_out import RemoteTuningLoop
