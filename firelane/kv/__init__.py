"""The paged KV cache as the host sees it: which block belongs to whom, and which prefix lies in which
block."""

from firelane.kv.cache import BlockTable, KvCache
from firelane.kv.prefix import PrefixChain

__all__ = ["BlockTable", "KvCache", "PrefixChain"]
