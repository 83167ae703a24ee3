"""The wall clock, which may jump, decides about no request: it is read for dates that people read, and for
those of stored files and batches. No deadline, order, age or limit of the engines comes from it."""

from __future__ import annotations

import ast
from pathlib import Path

import firelane

ROOT = Path(firelane.__file__).parent
READS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
}
DATES = {
    "gateway/apis/ollama/format.py",
    "gateway/apis/responses/format.py",
    "gateway/apis/responses/conversations.py",
    "gateway/apis/ollama/handler.py",
    "gateway/apis/ollama/models.py",
    "gateway/apis/decisions/handler.py",
    "gateway/apis/embeddings/pooled.py",
    "gateway/apis/embeddings/scores.py",
    "gateway/kv_events/feed.py",
    "gateway/processes/pool.py",
    "gateway/requests/generation.py",
    "gateway/conversations/turn.py",
    "gateway/server.py",
    "telemetry/otel.py",
    "text/rendering/template.py",
}
"""Files that write a date into an answer, an event or a prompt."""
STORED = {"gateway/batches/service.py", "gateway/files/store.py"}
"""Dates that outlive the process: when a batch is to be done, and when it and a file were made."""


def reads(path: Path) -> bool:
    named = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    return any((ast.unparse(one.value).rpartition(".")[2], one.attr) in READS for one in named)


def test_dates_alone_are_read_from_it():
    paths = [path for path in ROOT.rglob("*.py") if b"time" in path.read_bytes()]
    assert {str(path.relative_to(ROOT)) for path in paths if reads(path)} == DATES | STORED
