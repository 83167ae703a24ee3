"""Tiers of the KV cache: pages that it has no room for, or whose engine has ended, in host memory and on a
drive, found again by their names.

A tier never has to give a page: what it has not, or not in time, or not unharmed, is computed.
"""

from firelane.kv.tiers.admission import AdmitReused, TierAdmission
from firelane.kv.tiers.conductor import TieredPages
from firelane.kv.tiers.host import HostTier
from firelane.kv.tiers.places import CachedMemory
from firelane.kv.tiers.reader import PageRead
from firelane.kv.tiers.slots import PageKey, SlotIndex
from firelane.kv.tiers.tier import TIER_NAMES, PageTier, TierName, TierStats

__all__ = [
    "TIER_NAMES",
    "AdmitReused",
    "CachedMemory",
    "HostTier",
    "PageKey",
    "PageRead",
    "PageTier",
    "SlotIndex",
    "TierAdmission",
    "TierName",
    "TierStats",
    "TieredPages",
]
