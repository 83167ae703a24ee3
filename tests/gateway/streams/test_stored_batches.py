"""Lines of batches that ask for what streams and stored chats are."""

from __future__ import annotations

import pytest
from batch_support import hurry, line, results, start, wait
from streams_support import CHAT, logs

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def batches(make_service, tmp_path, monkeypatch):
    hurry(monkeypatch)
    return make_service(data_dir=tmp_path / "data")


def test_answers_of_lines_are_stored(batches):
    lines = [line(name, CHAT, messages=HI, store=name == "b", metadata={"line": name}) for name in "abc"]
    done = wait(batches, start(batches, lines, CHAT))
    answers = {one["custom_id"]: one["response"]["body"] for one in results(batches, done.output_file_id)}
    (stored,) = batches.http.get(CHAT).json()["data"]  # on an open server batches belong to no key
    assert stored["metadata"] == {"line": "b"}
    assert {name: stored[name] for name in answers["b"]} == answers["b"]


def test_a_line_makes_no_stream_that_is_kept(batches):
    done = wait(batches, start(batches, [line("a", CHAT, messages=HI, store=True, stream=True)], CHAT))
    assert done.status in ("completed", "failed")
    assert len(logs(batches)) == 0
