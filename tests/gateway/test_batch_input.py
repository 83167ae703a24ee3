"""Mistakes in a batch's input file are told by line."""

from __future__ import annotations

import asyncio
import json

import pytest
from test_batch_results import URL, line

from firelane.gateway.batches import input as batch_input
from firelane.gateway.batches.input import MAX_ERRORS, Input, scan

LIMIT = 4096


def look(tmp_path, *lines):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines))
    return path, asyncio.run(scan(path, URL, LIMIT))


def test_good_lines_can_be_read_by_number(tmp_path):
    path, found = look(
        tmp_path, line("a"), b"", line("é"), b"  \r", json.dumps(line("c")).encode() + b"\r", b""
    )
    assert found.errors == []
    assert found.numbers == {"a": 0, "é": 1, "c": 2}
    source = Input(path, found)
    assert [source.read(i).custom_id for i in range(len(found))] == ["a", "é", "c"]
    assert json.loads(bytes(source.read(1).body)) == {"prompt": "a"}
    source.close()


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"nonsense", "invalid_json_line", None),
        (b'{"custom_id": "x"', "invalid_json_line", None),
        (b"[]", "invalid_value", None),
        (b"null", "invalid_value", None),
        (b"[" * 3000, "invalid_value", None),
        (
            b'{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"a":' + b"[" * 3900,
            "invalid_json_line",
            None,
        ),
        (b'\xff\xfe{"custom_id"', "invalid_json_line", None),
        (
            b'{"custom_id": "\xff", "method": "POST", "url": "/v1/completions", "body": {}}',
            "invalid_json_line",
            None,
        ),
        ({"custom_id": "x"}, "missing_parameter", "method"),
        (line(1), "invalid_value", "custom_id"),
        (line(""), "invalid_value", "custom_id"),
        (line("x" * 600), "invalid_value", "custom_id"),
        (line("x", method="GET"), "invalid_value", "method"),
        (line("x", url="/v1/chat/completions"), "url_mismatch", "url"),
        (line("x", url="http://evil/" + "y" * 2000), "url_mismatch", "url"),
        (line("x", body="text"), "invalid_value", "body"),
        (line("x", body=None), "invalid_value", "body"),
        (line("x", body=[1]), "invalid_value", "body"),
        (line("x", body={"stream": True}), "unsupported_parameter", "body.stream"),
        (line("x", extra=1), "unknown_parameter", "extra"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        (b"x" * 5000, "line_too_long", None),
    ],
)
def test_bad_line(tmp_path, bad, code, param):
    _, found = look(tmp_path, line("a"), b"", bad)
    (error,) = found.errors
    assert (error.line, error.code, error.param) == (3, code, param)
    assert error.message
    assert "\n" not in error.message
    assert len(error.message) < 500


def test_errors_are_listed_up_to_a_bound(tmp_path):
    _, found = look(tmp_path, *[b"x"] * 500)
    assert [e.line for e in found.errors] == list(range(1, MAX_ERRORS + 1))


def test_file_without_requests(tmp_path):
    _, found = look(tmp_path, b"", b"\n\n")
    assert [e.code for e in found.errors] == ["empty_file"]


def test_too_many_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_input, "MAX_LINES", 3)
    _, found = look(tmp_path, *(line(str(i)) for i in range(4)))
    assert [e.code for e in found.errors] == ["too_many_requests"]


def test_a_long_scan_lets_other_work_run(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_input, "SLICE_S", -1.0)
    path, _ = look(tmp_path, *(line(str(i)) for i in range(50)))

    async def count():
        turns = 0
        scanning = asyncio.ensure_future(scan(path, URL, LIMIT))
        while not scanning.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(count()) > 50
