"""Tests of the control layer, all against a fake engine. Never touches torch or sockets."""
