"""Ranks on CPUs: a process each, which share memory on one machine, and TCP connections between machines
(`hosts`). `group` loads the executor in front, `worker` runs the other ranks."""
