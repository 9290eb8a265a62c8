"""The inference layer: models, attention, KV blocks, sampling. The only place with torch. Made by compose.

Threads that wait for each other inside one operation of torch spin for some microseconds and then sleep. libgomp, left
to itself, spins for milliseconds: on cores that somebody else uses too, each of some hundred operations a step then
waits for a thread that cannot run, and a step takes ten times as long. It reads its setting when torch is imported.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
