"""Pages that travel between engines by their names. Pull only: whoever needs pages copies them from an engine
that has them, so that nobody else ever writes into an engine's memory.

A pull never has to succeed: what does not come, or not in time, or is not what it was said to be, is
computed.
"""

from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.native import page_copier
from firelane.kv.transfer.page_copy import PageCopier
from firelane.kv.transfer.peers import PeerTransfer
from firelane.kv.transfer.seam import KVTransfer, Outcome, Settled

__all__ = [
    "ExportedPool",
    "KVTransfer",
    "Outcome",
    "PageCopier",
    "PeerTransfer",
    "Settled",
    "page_copier",
]
