"""The summary of a load: rates, percentiles, goodput; and that loads are sent as asked."""

from __future__ import annotations

import asyncio
import selectors
from pathlib import Path
from typing import Any

import pytest

from firelane.bench import plot, serve
from firelane.bench.client import LoadClient, Outcome, Recording
from firelane.bench.serve import ServeLoad, _send_all
from firelane.bench.summary import (
    Objectives,
    Statistics,
    format_summary,
    result_json,
    running_over_time,
    summarise,
    tokens_by_second,
)
from firelane.bench.table import format_table, percentile
from firelane.bench.workload import BenchRequest
from firelane.errors import MachineError, UsageError

OBJECTIVES = Objectives(ttft_ms=1500, tpot_ms=600)


def outcome(*times_s: float, start_s: float = 100.0) -> Outcome:
    return Outcome(
        error="",
        start_s=start_s,
        prompt_tokens=10,
        output_tokens=len(times_s),
        token_times_s=list(times_s),
        total_s=times_s[-1],
    )


OUTCOMES = [
    outcome(1.0, 1.5, 2.0),
    outcome(2.0, 2.5, start_s=101.0),
    outcome(1.0),
    Outcome(error="HTTP 429: full"),
]


def test_summary() -> None:
    summary = summarise(OUTCOMES, 4.0, OBJECTIVES)
    assert (summary.completed, summary.failed, summary.first_error) == (3, 1, "HTTP 429: full")
    assert (summary.prompt_tokens, summary.output_tokens) == (30, 6)
    assert summary.output_tokens_per_s == pytest.approx(6 / 4)
    assert summary.total_tokens_per_s == pytest.approx(36 / 4)
    assert summary.goodput_per_s == pytest.approx(2 / 4)
    assert summary.ttft_ms.percentiles == pytest.approx({50: 1000, 90: 1800, 99: 1980})
    assert (summary.ttft_ms.mean, summary.ttft_ms.std) == pytest.approx((4000 / 3, 471.4), rel=1e-4)
    assert summary.itl_ms.percentiles == pytest.approx(dict.fromkeys((50, 90, 99), 500))
    assert summary.tpot_ms.mean == 500  # of answers of two tokens and more
    text = format_summary(summary, OBJECTIVES)
    assert "1 failed, first: HTTP 429: full" in text
    assert "goodput: 0.50 requests/s with TTFT <= 1500 ms and TPOT <= 600 ms" in text


def test_what_went_on_over_time() -> None:
    good = [o for o in OUTCOMES if not o.error]
    assert tokens_by_second(good) == [0, 3, 1, 2]
    times, running = running_over_time(good)
    assert times == [0.0, 0.0, 1.0, 1.0, 2.0, 3.5]
    assert running == [1, 2, 1, 2, 1, 0]
    summary = summarise(OUTCOMES, 4.0, OBJECTIVES)
    assert (summary.most_tokens_per_s, summary.most_running) == (3, 2)


def test_results_have_the_keys_of_vllm() -> None:
    result = result_json(summarise(OUTCOMES, 4.0, OBJECTIVES, [25, 99.9]))
    rates = {"request_throughput", "request_goodput", "output_throughput", "total_token_throughput"}
    counts = {"completed", "failed", "total_input_tokens", "total_output_tokens", "max_concurrent_requests"}
    latencies = {
        f"{kind}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el")
        for kind in ("mean", "median", "std", "p25", "p50", "p99.9")
    }
    others = {"duration", "max_output_tokens_per_s", "total_cached_tokens"}
    assert set(result) == rates | counts | latencies | others
    assert result["mean_e2el_ms"] == pytest.approx((2000 + 2500 + 1000) / 3)


def test_detailed_results_have_an_entry_for_each_request() -> None:
    result = result_json(summarise(OUTCOMES, 4.0, OBJECTIVES), detailed=True)
    assert result["ttfts"] == [1.0, 2.0, 1.0, 0.0]
    assert result["itls"] == [[0.5, 0.5], [0.5], [], []]
    assert result["errors"] == ["", "", "", "HTTP 429: full"]
    assert result["output_lens"] == [3, 2, 1, 0]


def test_objectives_are_read_and_may_be_none() -> None:
    read = Objectives.read(["ttft:500", "e2el:2500"])
    assert read == Objectives(ttft_ms=500, e2el_ms=2500)
    assert [read.met_by(outcome(0.5, last)) for last in (2.5, 2.6)] == [True, False]
    summary = summarise(OUTCOMES, 4.0, Objectives.read([]))
    assert summary.goodput_per_s is None
    assert "goodput" not in format_summary(summary, Objectives())


@pytest.mark.parametrize("pair", ["ttft", "ttft:x", "itl:5", "tpot:-1", "tpot:nan"])
def test_wrong_objectives_are_told(pair: str) -> None:
    with pytest.raises(UsageError, match=f"--goodput {pair}: give ttft:MS"):
        Objectives.read([pair])


def test_statistics_of_nothing() -> None:
    assert Statistics.of([])[50] != Statistics.of([])[50]  # nan


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

    async def complete(self, request: BenchRequest) -> Recording:
        self.running += 1
        self.most = max(self.most, self.running)
        self.order.append(request.output_tokens)
        await asyncio.sleep(0)
        self.running -= 1
        return Recording(start_s=0.0)


REQUESTS = [BenchRequest(prompt="x", output_tokens=i) for i in range(1, 9)]


def test_concurrency_is_held() -> None:
    client = FakeClient()
    recordings, _ = asyncio.run(_send_all(client, REQUESTS, ServeLoad(concurrency=3)))
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


def test_each_end_is_told() -> None:
    told: list[int] = []
    asyncio.run(_send_all(FakeClient(), REQUESTS, ServeLoad(), told.append))
    assert told == list(range(1, 9))


def test_arrivals_order_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        loop = runner.get_loop()
        monkeypatch.setattr(serve.time, "perf_counter", loop.time)
        runner.run(_send_all(client, REQUESTS[:3], ServeLoad(arrivals_s=[80.0, 40.0, 0.0])))
        assert loop.time() == pytest.approx(80.0)
    assert client.order == [3, 2, 1]


def test_plot_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"firelane\[plot\]"):
        plot.save_plot([outcome(1.0)], tmp_path / "x.png")
