"""A model that several processes share: the collectives between them, the steps as messages, the group of processes.

Rank 0 is the process that has control. Each of the others is started by it and does what it is sent, step by step.
"""
