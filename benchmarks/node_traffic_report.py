"""Tables of what node_traffic.py has recorded."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from node_traffic_waits import Answer, Calm, Came, Ended, Failed, Record, Turn, quantile, tables, waits


def tell(records: Sequence[Record], lone: str) -> None:
    """Print all tables. lone: the model that had a server of its own, too."""
    answers = [one for one in records if isinstance(one, Answer)]
    traffic = [one for one in answers if not (one.calm or one.alone)]
    calm = [one for one in answers if one.calm]
    if not traffic or not calm:
        print("no turn has ended yet")
        return
    _summary(records, answers)
    _popular(answers, lone)
    own = _medians(calm)
    print("\n| asked when | requests | p50 s | p99 s | over the model's own, calm: p50 | p99 |")
    print("|---|---:|---:|---:|---:|---:|")
    _row("any", traffic, own)
    for state in sorted({a.state for a in traffic}):
        _row(state, [a for a in traffic if a.state == state], own)
    for state in ("ready", "standby", "packed"):
        _row(f"{state}, calm", [a for a in calm if a.state == state], own)
    came = [one for one in records if isinstance(one, Came)]
    ended = [one for one in records if isinstance(one, Ended)]
    comings = Calm.of(calm, came)
    for name, some in (("Traffic", traffic), ("Calm", calm)):
        print(f"\n{name}: requests whose model came while they waited, whatever its state when they came.\n")
        print(tables(waits(some, came, ended, comings), comings))


def _summary(records: Sequence[Record], answers: Sequence[Answer]) -> None:
    turns = [one for one in records if isinstance(one, Turn)]
    failed = [one for one in records if isinstance(one, Failed)]
    ended = sum(isinstance(one, Ended) for one in records)
    counts = {alone: sum(a.alone is alone for a in answers) for alone in (False, True)}
    print(
        f"{counts[False]} requests, of them {sum(a.calm for a in answers)} in the calm, in "
        f"{sum(turn.seconds for turn in turns):.0f} s of traffic in {len(turns)} turns: "
        f"{sum(not one.alone for one in failed)} failed; alone {sum(one.alone for one in failed)} of "
        f"{counts[True]}. {sum(turn.kills for turn in turns)} engines killed, {ended} ended unasked; "
        f"load {min(t.load for t in turns):.1f} to {max(t.load for t in turns):.1f}, processors wanted in "
        f"vain {statistics.median(t.starved for t in turns):.0%} of the time"
    )
    for one in failed[:10]:
        print(f"  failed: turn {one.turn}, {one.model}: {one.why}")


def _popular(answers: Sequence[Answer], lone: str) -> None:
    """The most popular model, where it was ready, beside a server of its own, by turns."""
    ratios = list[float]()
    for turn in sorted({a.turn for a in answers}):
        mine = [a for a in answers if a.turn == turn and a.model == lone and not a.calm]
        beside = [a.first_s for a in mine if not a.alone and a.state == "ready"]
        alone = [a.first_s for a in mine if a.alone]
        if beside and alone:
            ratios.append(statistics.median(beside) / statistics.median(alone))
    if ratios:
        print(
            f"p50 of the most popular model, ready, over alone: {statistics.median(ratios):.2f}, "
            f"turns of {min(ratios):.2f} to {max(ratios):.2f}"
        )


def _medians(calm: Sequence[Answer]) -> dict[tuple[str, str], float]:
    """Seconds to the first token, by model and state."""
    keys = {(a.model, a.state) for a in calm}
    return {k: statistics.median(a.first_s for a in calm if (a.model, a.state) == k) for k in keys}


def _row(name: str, answers: Sequence[Answer], own: dict[tuple[str, str], float]) -> None:
    if not answers:
        return
    over = [
        a.first_s / own[a.model, a.state if a.state in ("ready", "standby") else "packed"] for a in answers
    ]
    times = [a.first_s for a in answers]
    print(
        f"| {name} | {len(times)} | {quantile(times, 0.5):.3f} | {quantile(times, 0.99):.3f} | "
        f"{quantile(over, 0.5):.2f} | {quantile(over, 0.99):.2f} |"
    )
