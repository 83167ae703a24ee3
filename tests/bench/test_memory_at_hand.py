"""benchmarks/memory_at_hand.py: memory that is freed at the pace of its use."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
MIB = 1 << 20


@pytest.fixture
def machine(monkeypatch):
    """The module, on a machine with 64 MiB free, of which `used` are used."""
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    module = importlib.import_module("memory_at_hand")
    monkeypatch.setattr(module, "LEAD_BYTES", 4 * MIB)
    module.used = 0
    return module


def held(machine, monkeypatch, nbytes):
    memory = machine.MemoryAtHand(nbytes)
    monkeypatch.setattr(machine, "free_bytes", lambda: 64 * MIB + memory.freed - machine.used)
    return memory


def freed(memory, nbytes):
    """So much has been freed, in the end."""
    deadline_s = time.monotonic() + 60
    while memory.freed != nbytes and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return memory.freed == nbytes


def test_freed_a_little_before_it_is_used(machine, monkeypatch):
    with held(machine, monkeypatch, 16 * MIB) as memory:
        assert memory.freed == 4 * MIB
        machine.used = 7 * MIB
        assert freed(memory, 10 * MIB)  # whole huge pages
        machine.used = 5 * MIB
        machine.used = 9 * MIB
        assert freed(memory, 12 * MIB)


def test_no_more_than_there_is(machine, monkeypatch):
    with held(machine, monkeypatch, 3 * MIB) as memory:
        machine.used = 1000 * MIB
        assert freed(memory, 8 * MIB)


def test_free_memory_of_this_machine(machine):
    assert 0 < machine.free_bytes() < 1 << 50
