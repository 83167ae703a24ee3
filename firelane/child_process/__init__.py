"""Child processes: started, watched, replaced, ended in one way.

`child` has the Child, which whoever starts a process of Firelane keeps of it; `worker` has one that answers
requests and is replaced when it is lost; `silence` watches over one that has to show life. `nursery` starts
children for a process that may start none itself; `forked` makes helpers. `own` is for the child itself.
Each replacement, of whatever kind of child, is noted in a `Replacements`: that writes the line of the log,
and metrics and /health read it.
"""

from firelane.child_process.child import Child, Replacements
from firelane.child_process.own import as_child, end_with_parent, has_parent, limit_memory

__all__ = ["Child", "Replacements", "as_child", "end_with_parent", "has_parent", "limit_memory"]
