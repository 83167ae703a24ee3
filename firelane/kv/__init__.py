"""The paged KV cache as the host sees it: which page belongs to whom, and which prefix lies in which page."""

from firelane.kv.cache import KvCache, NewPage, PageBudget
from firelane.kv.pool import IncomingPages, WantedPage, WantedState
from firelane.kv.prefix import PrefixChain
from firelane.kv.states import SnapshotRule, StateSave, StateSnapshots
from firelane.kv.tables import BlockTables, PrefixHit

__all__ = [
    "BlockTables",
    "IncomingPages",
    "KvCache",
    "NewPage",
    "PageBudget",
    "PrefixChain",
    "PrefixHit",
    "SnapshotRule",
    "StateSave",
    "StateSnapshots",
    "WantedPage",
    "WantedState",
]
