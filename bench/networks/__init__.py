"""Whole networks against their peers: the evaluation of DeepCuts (section 7)."""
