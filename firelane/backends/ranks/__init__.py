"""A model by several processes, its ranks: whatever the device, one rank starts and leads the others.

`member` is a process as loaders see it: the only one of its model, or one that follows. `leader` starts the
processes of the others, each a `process` to it, which run a `worker`; `words` are what the two say to each
other. `group` is the executor in front. What depends on the kind of device is an `Interconnect` (leader.py):
that of CPUs is in backends.cpu.ranks, that of GPUs in backends.cuda.ranks.
"""
