"""A compiler of grammars that is told when to finish, and what waits for it."""

from __future__ import annotations

import threading
import time

import numpy as np

from firelane.engine.grammar.queue import GrammarQueue
from firelane.engine.sequences.sequence import TenantInfo
from firelane.errors import MachineError, ProcessDeadError, QueueTimeoutError, RequestError
from firelane.wire.frames import Grammar

PATIENCE_S = 20


class Result(dict):
    is_spent = False


class GatedCompiler:
    """Compiles a text when its gate is opened; "bad…" is wrong, "busy…" a thing of the machine, "panic…"
    a defect."""

    def __init__(self) -> None:
        self.gates: dict[str, threading.Event] = {}
        self.compiled: list[str] = []
        self.closed = False

    def gate(self, text: str) -> threading.Event:
        return self.gates.setdefault(text, threading.Event())

    def compile(self, grammar: Grammar) -> object:
        assert self.gate(grammar.text).wait(PATIENCE_S)
        self.compiled.append(grammar.text)
        if grammar.text.startswith("bad"):
            raise RequestError(f"{grammar.text} is wrong")
        if grammar.text.startswith("busy"):
            raise QueueTimeoutError("try again")
        if grammar.text.startswith("lost"):
            raise ProcessDeadError("three processes were lost")
        if grammar.text.startswith("none left"):
            raise MachineError("none left")
        if grammar.text.startswith("panic"):
            raise SystemExit("a panic")
        return Result(text=grammar.text)

    def close(self) -> None:
        self.closed = True


class Sequence:
    def __init__(self, request_id: int, tenant: str = "") -> None:
        self.id = request_id
        self.tenant = TenantInfo(tenant)
        self.constraint = None
        self.tokens, self.prompt_len = np.zeros(1, np.int32), 1


def taken(queue: GrammarQueue, count: int) -> dict[int, str]:
    """The next `count` requests whose wait is over."""
    found: dict[int, str] = {}
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < until_s
        found |= {sequence.id: str(error or "") for sequence, error in queue.take()}
    assert len(found) == count
    return found


def regex(text: str) -> Grammar:
    return Grammar("regex", text)
