"""A queue of grammars in front of a compiler that is told when to finish."""

from __future__ import annotations

import pytest
from gated_compiler import GatedCompiler

from firelane.engine.grammar.limits import GrammarLimits
from firelane.engine.grammar.queue import GrammarQueue


@pytest.fixture
def compiler():
    return GatedCompiler()


@pytest.fixture
def queue(compiler):
    queue = GrammarQueue(compiler, GrammarLimits(cached=2, waiting=4))
    yield queue
    for gate in compiler.gates.values():
        gate.set()
    queue.close()
    queue._workers.join()
    assert compiler.closed == bool(queue._workers._threads)
