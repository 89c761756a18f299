"""Measurements of `cuts`: operations, networks, and tools for the compiler."""
