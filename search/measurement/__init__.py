"""Devices that check and time candidates, one or several, or recorded results."""

from .bench import Bench, DeviceBench
from .device_pool import SERVICE, DevicePool
from .replay import ReplayBench
from .verdicts import DeviceAnswer, TimingTurns, Verdict
