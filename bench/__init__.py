"""Measurements of `cuts`: single operations, whole networks, and tools that look at the compiler itself."""
