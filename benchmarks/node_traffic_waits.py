"""Waits of requests for models that were not there, taken apart: what the node's log says of each coming
(`model_came`), beside what the client saw.

Times are Unix times in seconds, of one machine.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

NODE_LINES = re.compile(r"(model_came|engine_exit) model=(\S+)")
FIELD = re.compile(r"(before|memory_s|took_s|deaths)=(?:'([^']*)'|(\S+))")
BAR = 1.2
TAKEN = 0.1
"""Share of the machine's processors that others have, from which a wait counts as theirs."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """One request. state: of the model when it was asked. taken: share of the machine's processors that other
    programs, or other machines, had until the first token. calm: nothing else was asked."""

    turn: int
    model: str
    state: str
    asked_at: float
    first_s: float
    text: str
    taken: float = 0.0
    calm: bool = False
    alone: bool = False


class Came(msgspec.Struct, frozen=True, kw_only=True, tag="came"):
    """A model served from `at` on: after memory_s of waiting for memory, and took_s of load or wake."""

    turn: int
    model: str
    at: float
    before: str
    memory_s: float
    took_s: float
    deaths: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """An engine ended that nobody had asked to."""

    turn: int
    model: str
    at: float


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    turn: int
    model: str
    why: str
    alone: bool = False


class Turn(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A turn that came to its end. starved: share of its time in which something waited for a processor."""

    turn: int
    seconds: float
    kills: int
    load: float
    starved: float


class Sizes(msgspec.Struct, frozen=True, kw_only=True, tag="sizes"):
    """Findings before the first turn: bytes, and each model's answer."""

    needs: list[int]
    standby: int
    texts: dict[str, str]


Record = Answer | Came | Ended | Failed | Turn | Sizes


def node_events(log: str, turn: int, since: float) -> list[Came | Ended]:
    """Read the events after `since` from a node's log of JSON lines."""
    found = list[Came | Ended]()
    for line in log.splitlines():
        event = NODE_LINES.search(line)
        if event is None or not line.startswith("{"):
            continue
        record = msgspec.json.decode(line)
        if record["time"] < since:
            continue
        if event[1] == "model_came":
            found.append(_came(turn, event[2], record["time"], record["message"]))
        else:
            found.append(Ended(turn=turn, model=event[2], at=record["time"]))
    return found


def _came(turn: int, model: str, at: float, message: str) -> Came:
    fields: dict[str, Any] = {name: quoted or plain for name, quoted, plain in FIELD.findall(message)}
    return msgspec.convert(fields | {"turn": turn, "model": model, "at": at}, Came, strict=False)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A request whose model came while it waited. memory_s: for memory of other models; wake_s: of the load
    or wake itself, or of what was left of it; rest_s: on the way to it and from there to the first token.
    own_s: the wake's own time, and that of the rest behind such a wake in the calm."""

    answer: Answer
    before: str
    memory_s: float
    wake_s: float
    rest_s: float
    own_s: float
    died: bool

    @property
    def over(self) -> float:
        return self.answer.first_s / self.own_s

    @property
    def cause(self) -> str:
        """The likeliest cause of a wait beyond the bar; "" for other waits."""
        if self.over <= BAR:
            return ""
        if self.died:
            return "its engine died meanwhile"
        if self.memory_s >= (self.answer.first_s - self.own_s) / 2:
            return "others had to leave memory first"
        return "others had the processor" if self.answer.taken >= TAKEN else "none of these"


@dataclass(frozen=True)
class Calm:
    """Medians, by model and by where it came from, of comings while nothing else was asked: seconds of the
    load or wake, and of the rest of the time to the first token."""

    wakes: dict[tuple[str, str], float]
    prefills: dict[tuple[str, str], float]

    @classmethod
    def of(cls, answers: Iterable[Answer], came: Sequence[Came]) -> Calm:
        wakes, prefills = dict[tuple[str, str], list[float]](), dict[tuple[str, str], list[float]]()
        for answer in answers:
            for one in within(came, answer):
                key = answer.model, one.before
                wakes.setdefault(key, []).append(one.took_s)
                prefills.setdefault(key, []).append(max(0.0, answer.first_s - one.memory_s - one.took_s))
        return cls(_medians(wakes), _medians(prefills))

    def own_s(self, model: str, before: str) -> tuple[float, float]:
        """A dead engine's model comes as one without an engine."""
        key = model, "standby" if before == "standby" else "no engine"
        return self.wakes[key], self.prefills[key]


def _medians(found: dict[tuple[str, str], list[float]]) -> dict[tuple[str, str], float]:
    return {key: statistics.median(times) for key, times in found.items()}


def within(events: Iterable[Came], answer: Answer) -> list[Came]:
    """Comings of the answer's model that ended while it waited for its first token."""
    ends_at = answer.asked_at + answer.first_s
    return [one for one in events if one.model == answer.model and answer.asked_at <= one.at <= ends_at]


def waits(answers: Iterable[Answer], came: Sequence[Came], ended: Sequence[Ended], calm: Calm) -> list[Wait]:
    """Return the waits of all requests whose model came meanwhile, whatever its state before."""
    return [_wait(answer, found, ended, calm) for answer in answers if (found := within(came, answer))]


def _wait(answer: Answer, found: Sequence[Came], ended: Sequence[Ended], calm: Calm) -> Wait:
    """The own time of a wake in which an engine died is what the calm took: the wake has the death in it."""
    last, first_at = found[-1], answer.asked_at + answer.first_s
    began_at = max(answer.asked_at, last.at - last.took_s)
    dead = any(one.model == answer.model and answer.asked_at <= one.at <= first_at for one in ended)
    died = dead or last.deaths > 0 or len(found) > 1
    calm_s, prefill_s = calm.own_s(answer.model, last.before)
    wake_s = last.at - began_at
    memory_s = min(last.memory_s, began_at - answer.asked_at)
    return Wait(
        answer=answer,
        before=last.before,
        memory_s=memory_s,
        wake_s=wake_s,
        rest_s=answer.first_s - memory_s - wake_s,
        own_s=max(1e-6, (calm_s if died else wake_s) + prefill_s),
        died=died,
    )


def tables(found: Sequence[Wait], calm: Calm) -> str:
    """Markdown: waits over the wakes' own time, and why those beyond the bar were."""
    lines = [
        "| came from | requests | first token, s: p50 | p99 | own wake + prefill, s: p50 | p99 "
        "| first token / own: p50 | p99 | most | wake / calm wake: p50 | p99 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    undisturbed = [wait for wait in found if not wait.died]
    lines += [_row("any", found, calm), _row("any, no engine died meanwhile", undisturbed, calm)]
    for before in sorted({wait.before for wait in found}):
        lines.append(_row(before, [wait for wait in found if wait.before == before], calm))
    return "\n".join([*lines, "", *_causes(found)])


def _row(name: str, found: Sequence[Wait], calm: Calm) -> str:
    if not found:
        return f"| {name} | 0 |" + " - |" * 9
    over = [wait.over for wait in found]
    slower = [wait.wake_s / max(1e-6, calm.own_s(wait.answer.model, wait.before)[0]) for wait in found]
    cells = [f"{len(found)}"]
    for values, digits in (
        ([wait.answer.first_s for wait in found], 3),
        ([wait.own_s for wait in found], 3),
        (over, 2),
    ):
        cells += [f"{quantile(values, share):.{digits}f}" for share in (0.5, 0.99)]
    cells += [f"{max(over):.2f}", *(f"{quantile(slower, share):.2f}" for share in (0.5, 0.99))]
    return f"| {name} | {' | '.join(cells)} |"


def _causes(found: Sequence[Wait]) -> list[str]:
    """Parts of the waits' time, and the causes of those beyond the bar."""
    total_s = sum(wait.answer.first_s for wait in found) or 1.0
    parts = {
        "memory": sum(wait.memory_s for wait in found),
        "wakes": sum(wait.wake_s for wait in found),
        "the rest": sum(wait.rest_s for wait in found),
    }
    lines = ["Of all time waited: " + ", ".join(f"{what} {s / total_s:.0%}" for what, s in parts.items()), ""]
    lines += [
        f"| beyond {BAR} x own, because | requests | of those that waited | s beyond own | of all waited |",
        "|---|---:|---:|---:|---:|",
    ]
    for cause in sorted({wait.cause for wait in found} - {""}):
        mine = [wait for wait in found if wait.cause == cause]
        beyond_s = sum(wait.answer.first_s - wait.own_s for wait in mine)
        share = len(mine) / len(found)
        lines.append(f"| {cause} | {len(mine)} | {share:.1%} | {beyond_s:.2f} | {beyond_s / total_s:.1%} |")
    return lines


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
