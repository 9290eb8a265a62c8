"""Measures the system from outside: suites, rows, peers. Never tunes anything. Called by `loopwright bench`."""
