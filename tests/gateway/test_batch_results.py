"""The result files of a batch: whatever a crash leaves of them, each line is there once or is run again."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firelane.api.stored.batches import LineError, LineResponse, ResultLine
from firelane.gateway.batches.input import scan
from firelane.gateway.batches.results import ResultFile, Results, encode_line

URL = "/v1/completions"
TOTAL = 12


def line(custom_id, **fields):
    return {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": "a"}} | fields


def write_input(path: Path, total: int = TOTAL) -> None:
    path.write_text("".join(json.dumps(line(f"line-{i}")) + "\n" for i in range(total)))


def read(path: Path):
    return asyncio.run(scan(path, URL, 10_000))


def result(number: int, *, tokens: int = 1, text: str = "x") -> ResultLine:
    usage = {"prompt_tokens": 2, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 1}}
    body = msgspec.Raw(json.dumps({"text": text, "usage": usage}).encode())
    response = LineResponse(status_code=200, request_id=f"req-{number}", body=body)
    return ResultLine(id=f"batch_req_{number}", custom_id=f"line-{number}", response=response)


@pytest.fixture
def lines(tmp_path):
    write_input(tmp_path / "input.jsonl")
    return read(tmp_path / "input.jsonl")


def test_results_are_kept_and_counted(tmp_path, lines):
    results = Results(tmp_path, lines)
    results.take(0, result(0), completed=True)
    results.take(3, result(3, tokens=5), completed=True)
    results.take(2, result(2), completed=False)
    asyncio.run(results.flush())
    assert results.waiting_bytes == 0
    results.close()
    again = Results(tmp_path, lines)
    assert again.tally.done == {0, 2, 3}
    assert again.tally.counts == results.tally.counts
    assert (again.tally.counts.total, again.tally.counts.completed, again.tally.counts.failed) == (
        TOTAL,
        2,
        1,
    )
    assert again.tally.usage == results.tally.usage
    usage = again.tally.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (6, 7, 13)
    assert usage.input_tokens_details.cached_tokens == 3
    again.close()


def test_lines_that_did_not_run_are_no_failures(tmp_path, lines):
    results = Results(tmp_path, lines)
    unrun = ResultLine(id="x", custom_id="line-1", error=LineError(code="batch_expired", message="late"))
    results.take(1, unrun, completed=False)
    asyncio.run(results.flush())
    assert (results.tally.counts.failed, results.tally.done) == (0, {1})
    results.close()


def test_an_answer_of_many_lines_is_one_line():
    body = msgspec.Raw(json.dumps({"a": 1, "b": "x\ny"}, indent=2).encode())
    response = LineResponse(status_code=200, request_id="r", body=body)
    text = encode_line(ResultLine(id="i", custom_id="c", response=response))
    assert text.count(b"\n") == 1
    assert json.loads(text)["response"]["body"] == {"a": 1, "b": "x\ny"}


def test_a_write_that_fails_leaves_no_part(tmp_path, monkeypatch):
    import os

    file = ResultFile(tmp_path / "f")
    file.append([b"first\n"])
    real = os.pwrite

    def half(fd, data, offset):
        if offset > file.size_bytes:
            raise OSError(28, "No space left on device")
        return real(fd, data[: len(data) // 2], offset)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        file.append([b"second\n"])
    assert (tmp_path / "f").read_bytes() == b"first\n"
    monkeypatch.undo()
    file.append([b"third\n"])
    assert (tmp_path / "f").read_bytes() == b"first\nthird\n"
    file.close()


def test_flush_after_a_failure_writes_each_line_once(tmp_path, lines, monkeypatch):
    results = Results(tmp_path, lines)
    results.take(0, result(0), completed=True)
    results.take(1, result(1), completed=False)

    def fails(self, lines):  # noqa: ARG001
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ResultFile, "append", fails)
    with pytest.raises(OSError):
        asyncio.run(results.flush())
    monkeypatch.undo()
    asyncio.run(results.flush())
    asyncio.run(results.flush())
    asyncio.run(results.flush())
    assert len((tmp_path / "output.jsonl").read_bytes().splitlines()) == 1
    assert len((tmp_path / "errors.jsonl").read_bytes().splitlines()) == 1
    results.close()


order = st.permutations(range(TOTAL))
flags = st.lists(st.booleans(), min_size=TOTAL, max_size=TOTAL)
texts = st.lists(st.text(max_size=12), min_size=TOTAL, max_size=TOTAL)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    order=order,
    completed=flags,
    texts=texts,
    written=st.integers(0, TOTAL),
    groups=st.integers(1, 5),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    tail=st.sampled_from(
        [b"", b"\0" * 40, b"\xff\xfe\n", b'{"custom_id":"line-0"', b"{}\n", b"\0\n", b"[" * 5000 + b"\n"]
    ),
)
def test_any_cut_is_repaired(order, completed, texts, written, groups, cuts, tail):
    """Write some results in groups, cut both files anywhere, add garbage; then go on to the end."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_input(directory / "input.jsonl")
        lines = read(directory / "input.jsonl")
        first = Results(directory, lines)
        for i, number in enumerate(order[:written]):
            first.take(number, result(number, text=texts[number]), completed=completed[number])
            if i % groups == 0:
                asyncio.run(first.flush())
        asyncio.run(first.flush())
        first.close()
        kept = []
        for file, cut in zip(("output.jsonl", "errors.jsonl"), cuts, strict=True):
            content = (directory / file).read_bytes()
            content = content[: round(cut * len(content))]
            (directory / file).write_bytes(content + tail)
            kept += [
                json.loads(text)["custom_id"]
                for text in content.splitlines(keepends=True)
                if text.endswith(b"\n")
            ]
        second = Results(directory, lines)
        assert {f"line-{number}" for number in second.tally.done} == set(kept)
        for number in sorted(set(range(TOTAL)) - second.tally.done):
            second.take(number, result(number, text=texts[number]), completed=completed[number])
        asyncio.run(second.flush())
        second.close()
        found = {True: [], False: []}
        for file, ok in (("output.jsonl", True), ("errors.jsonl", False)):
            for text in (directory / file).read_bytes().splitlines():
                entry = json.loads(text)
                number = int(entry["custom_id"].removeprefix("line-"))
                assert entry["response"]["body"]["text"] == texts[number]
                assert completed[number] is ok
                found[ok].append(number)
        assert sorted(found[True] + found[False]) == list(range(TOTAL))


def test_a_line_of_another_batch_or_twice_is_not_taken(tmp_path, lines):
    good = encode_line(result(0))
    other = good.replace(b"line-0", b"line-99")
    (tmp_path / "output.jsonl").write_bytes(good + good + encode_line(result(1)))
    (tmp_path / "errors.jsonl").write_bytes(other)
    results = Results(tmp_path, lines)
    assert results.tally.done == {0}
    assert (tmp_path / "output.jsonl").read_bytes() == good
    assert (tmp_path / "errors.jsonl").read_bytes() == b""
    results.close()
