"""The control layer: decides what runs on the device and in which order. Never touches tensors or sockets.

Its one door is `loopwright.control.controller`, which the runtime enters through `core.control`.
"""
