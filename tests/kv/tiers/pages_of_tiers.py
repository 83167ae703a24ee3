"""Pages, and tiers on a drive, for tests."""

from __future__ import annotations

import numpy as np

from firelane.kv.tiers.cipher import NoCipher
from firelane.kv.tiers.disk import open_disk
from firelane.kv.tiers.encrypted import Encrypted
from firelane.kv.tiers.records import Kind

PAGE_BYTES = 5000
KIND = Kind("a model", "a layout", PAGE_BYTES, 2)
CIPHERS = {"plain": NoCipher, "encrypted": lambda: Encrypted(b"s" * 32, "test")}


def disk(directory, kind=KIND, cipher="plain", num_slots=8, **sizes):
    return open_disk(directory, kind, CIPHERS[cipher](), num_slots=num_slots, **sizes)


def key(number, group=0):
    return group, bytes([number]) * 32


def page(number):
    return np.random.default_rng(number).integers(0, 256, PAGE_BYTES, np.uint8)


def read(tier, name):
    into = np.zeros(PAGE_BYTES, np.uint8)
    return into if tier.get(name, into) else None


def put(tier, *numbers, tenant=b"a" * 16):
    for number in numbers:
        tier.put(key(number), tenant, page(number), lambda: True)
