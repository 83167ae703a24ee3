"""Rights that a process gives up for itself and for all that it starts, on Linux: files, the network, other
processes, programs. Nothing here needs to be privileged.

`system` has the system calls, `landlock` and `seccomp` the kernel's two means, `paths` says what an engine
needs, and `confine` is what an engine calls.
"""
