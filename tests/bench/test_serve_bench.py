"""The summary of a load: rates, percentiles, goodput; and that loads are sent as asked."""

from __future__ import annotations

import asyncio
import selectors
from pathlib import Path
from typing import Any

import pytest

from firelane.bench import plot, serve
from firelane.bench.client import LoadClient, Outcome, Recording
from firelane.bench.serve import Load, Objectives, _send_all, format_summary, summarise
from firelane.bench.table import format_table, percentile
from firelane.bench.workload import Request
from firelane.errors import MachineError, UsageError

OBJECTIVES = Objectives(ttft_ms=1500, tpot_ms=600)


def outcome(*times_s: float) -> Outcome:
    return Outcome(
        error="",
        prompt_tokens=10,
        output_tokens=len(times_s),
        token_times_s=list(times_s),
        total_s=times_s[-1],
    )


def test_summary() -> None:
    outcomes = [outcome(1.0, 1.5, 2.0), outcome(2.0, 2.5), outcome(1.0, 2.0), Outcome(error="HTTP 429: full")]
    summary = summarise(outcomes, 4.0, OBJECTIVES)
    assert (summary.completed, summary.failed, summary.first_error) == (3, 1, "HTTP 429: full")
    assert (summary.prompt_tokens, summary.output_tokens) == (30, 7)
    assert summary.output_tokens_per_s == pytest.approx(7 / 4)
    assert summary.total_tokens_per_s == pytest.approx(37 / 4)
    assert summary.goodput_per_s == pytest.approx(1 / 4)
    assert summary.ttft_ms == {50: 1000, 90: 2000, 99: 2000}
    assert summary.itl_ms == {50: 500, 90: 1000, 99: 1000}
    text = format_summary(summary, OBJECTIVES)
    assert "1 failed, first: HTTP 429: full" in text
    assert "goodput: 0.25 requests/s" in text


def test_nothing_but_failures_is_an_error() -> None:
    with pytest.raises(MachineError, match="all 2 requests failed: refused"):
        summarise([Outcome(error="refused")] * 2, 1.0, OBJECTIVES)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (25, 1), (50, 2), (51, 3), (90, 4), (100, 4)])
def test_percentile_is_nearest_rank(percent: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == value


def test_table_lines_up() -> None:
    lines = format_table(["workload", "tok/s"], [["a", "1.0"], ["long name", "10.25"]]).splitlines()
    assert lines[0] == "| workload  | tok/s |"
    assert lines[3] == "| long name | 10.25 |"
    assert len({len(line) for line in lines}) == 1


class FakeClient(LoadClient):
    """Answers when told that all expected requests are waiting; knows how many ran at a time."""

    def __init__(self) -> None:
        super().__init__("http://x", "m")
        self.running = self.most = 0
        self.order: list[int] = []

    async def complete(self, request: Request) -> Recording:
        self.running += 1
        self.most = max(self.most, self.running)
        self.order.append(request.output_tokens)
        await asyncio.sleep(0)
        self.running -= 1
        return Recording(start_s=0.0)


REQUESTS = [Request(prompt="x", output_tokens=i) for i in range(1, 9)]


def test_concurrency_is_held() -> None:
    client = FakeClient()
    recordings, _ = asyncio.run(_send_all(client, REQUESTS, Load(concurrency=3)))
    assert len(recordings) == 8
    assert client.most == 3


class LeapingLoop(asyncio.SelectorEventLoop):
    """Its time passes only while it waits, and then at once."""

    def __init__(self) -> None:
        leaping = LeapingSelector(self)
        self.now_s = 0.0
        super().__init__(leaping)

    def time(self) -> float:
        return self.now_s


class LeapingSelector(selectors.DefaultSelector):
    def __init__(self, loop: LeapingLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self.loop.now_s += timeout or 0.0
        return super().select(0)


def test_arrivals_order_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        loop = runner.get_loop()
        monkeypatch.setattr(serve.time, "perf_counter", loop.time)
        runner.run(_send_all(client, REQUESTS[:3], Load(arrivals_s=[80.0, 40.0, 0.0])))
        assert loop.time() == pytest.approx(80.0)
    assert client.order == [3, 2, 1]


def test_plot_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"firelane\[plot\]"):
        plot.save_plot([outcome(1.0)], tmp_path / "x.png")
