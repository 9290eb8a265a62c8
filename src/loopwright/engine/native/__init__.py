"""The decoder on a CPU without torch's kernels: C++ of our own, compiled for the instruction set of the machine.

Never samples, never decides what runs. The model runner uses it where it can be built and the model fits its shape;
`build` says why not elsewhere.
"""
