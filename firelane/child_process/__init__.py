"""Child processes: what a child does to itself, how it ended, who replaces it.

`own` is for the child itself. Whoever starts one finds in `ending` how to wait for its end and what the end
means, in `state` whether it is stopped, in `nursery` processes for those who may start none themselves. Each
replacement of a child, of whatever kind, is noted in a `Replacements`: that writes the line of the log, and
metrics and /health read it.
"""

from firelane.child_process.own import end_with_parent, has_parent, limit_memory
from firelane.child_process.replacements import Replacements

__all__ = ["Replacements", "end_with_parent", "has_parent", "limit_memory"]
