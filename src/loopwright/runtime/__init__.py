"""The application layer: programs and their runs, sandboxes, host functions, tools, permissions and limits.

Never schedules and never computes: it enters control through `core.control`, and is entered through `core.runs`.
"""
