"""Faults of processes and of the network, under load: no request may fail, and each answer has the bytes that
it has without faults.

    python benchmarks/cluster_faults.py SETTING [--events 50] [--seconds 400] [--results FILE]
    python benchmarks/cluster_faults.py table --results FILE

SETTING is roles, hosts, host-roles or servers: see fault_settings.py. Each event is a fault that
has come least often so far, at a random place, while streams run; the next one comes when all engines serve
again and each stream has gone on. A line of JSON is written to FILE behind each event; with the same FILE a
run that was ended goes on. All but `roles` lose packets between network namespaces, and need root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fault_acts import wait
from fault_settings import SETTINGS, Setting
from fault_streams import Streams

PIECES = 8
"""The pieces of each stream between two faults. They are more than an engine draws ahead, so that a request
that is hit again and again is not taken for the cause."""
RESULTS = Path("cluster_faults.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("setting", choices=(*SETTINGS, "table"))
    parser.add_argument("--events", type=int, default=50, help="with those that FILE has of this setting")
    parser.add_argument("--seconds", type=float, default=400.0, help="after which no other event begins")
    parser.add_argument("--at-once", type=int, default=1, help="faults at a time, in different places")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    before: list[dict[str, Any]] = [json.loads(line) for line in lines]
    if arguments.setting == "table":
        print_table(before)
        return
    own = [event for event in before if event["setting"] == arguments.setting]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with what it has started
    rng = random.Random(f"{arguments.seed} {arguments.setting} {len(own)}")
    with contextlib.ExitStack() as stack, arguments.results.open("a") as file:
        setting = SETTINGS[arguments.setting](stack, arguments.tokens)
        streams = Streams(setting.ask, arguments.streams)
        stack.callback(print_failures, streams)
        campaign = Campaign(arguments.setting, setting, streams, rng)
        campaign.tried.update(event["fault"] for event in own)
        ends_s = time.monotonic() + arguments.seconds
        while campaign.tried.total() < arguments.events and time.monotonic() < ends_s:
            for row in campaign.event(arguments.at_once):
                print(json.dumps(row), file=file, flush=True)
        streams.stop()
        print(json.dumps(campaign.rest()), file=file, flush=True)
        print(f"counters of the server: {setting.counters()}")


class Campaign:
    """Faults, one after the other. tried: how often each has come."""

    def __init__(self, name: str, setting: Setting, streams: Streams, rng: random.Random) -> None:
        self._name, self._setting, self._streams, self._rng = name, setting, streams, rng
        self.tried = Counter[str](dict.fromkeys(setting.faults, 0))
        self._told = Counter[str]()

    def event(self, at_once: int) -> list[dict[str, Any]]:
        """Returns when all is well again. Raises TimeoutError where it does not get so."""
        began_s, chosen = time.monotonic(), self._chosen(at_once)
        with ThreadPoolExecutor(at_once) as threads:
            hits = [threads.submit(self._setting.faults[name].act, place) for name, place in chosen]
        for hit in hits:
            hit.result()
        wait(self._setting.is_whole)
        self._streams.wait_for_news(PIECES)
        self.tried.update(name for name, _ in chosen)
        took = {"setting": self._name, "seconds": round(time.monotonic() - began_s, 1)}
        return [self._told_of({**took, "fault": name}) for name, _ in chosen]

    def _chosen(self, at_once: int) -> list[tuple[str, str]]:
        """Faults that have come least often, each in a place of its own."""
        free, found = self._setting.places(), list[tuple[str, str]]()
        for name in sorted(self.tried, key=lambda name: (self.tried[name], self._rng.random())):
            places = free[self._setting.faults[name].hits]
            if places and len(found) < at_once:
                found.append((name, places.pop(self._rng.randrange(len(places)))))
        return found

    def rest(self) -> dict[str, Any]:
        """Requests that have ended behind the last event."""
        return self._told_of({"setting": self._name, "fault": ""})

    def _told_of(self, row: dict[str, Any]) -> dict[str, Any]:
        ended = Counter(self._streams.ended)
        news, self._told = ended - self._told, ended
        row = {**row, "ended": dict(news)}
        print(time.strftime("%H:%M:%S"), self.tried.total(), json.dumps(row), flush=True)
        return row


def print_failures(streams: Streams) -> None:
    for failure in streams.failures:
        print(failure, file=sys.stderr)


def print_table(events: list[dict[str, Any]]) -> None:
    times = Counter((event["setting"], event["fault"]) for event in events if event["fault"])
    print("| setting | fault | times |\n|---|---|---:|")
    for (setting, fault), count in sorted(times.items()):
        print(f"| {setting} | {fault} | {count} |")
    print(f"| | together | {times.total()} |\n")
    ended = sum((Counter(event["ended"]) for event in events), Counter[str]())
    print(f"{ended.total()} requests ended: {dict(ended)}")


if __name__ == "__main__":
    main()
