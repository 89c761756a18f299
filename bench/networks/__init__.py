"""Whole networks beside their peers: the evaluation of DeepCuts (section 7), and networks by precision policy."""

from .statistics import settled

__all__ = ["settled"]
