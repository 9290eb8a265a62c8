"""Spreads runs over several runtime workers. Never runs one. Wired by compose, called by the server."""
