"""The composition root: from a configuration to objects and processes. Knows every layer and decides nothing.

Used by the command line and handed to the benchmarks, which stand above it.
"""
