"""Whole networks against their peers.

These are the evaluation of DeepCuts (section 7), and networks by precision policy.
"""

from .models import fit_norms
