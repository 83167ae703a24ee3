"""Metric instruments that are cheap to write and are read only when scraped.

An instrument belongs to one thread (an event loop); there are no locks. prometheus_client renders them, and
is imported at the first scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Instrument(Protocol):
    name: str

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """prometheus_client metric families with the current values."""
        ...


class Counter:
    """Only grows. With `label`, one count for each value of that label."""

    def __init__(self, name: str, text: str, label: str | None = None) -> None:
        self.name, self.text, self.label = name, text, label
        self.values: dict[str, float] = {} if label else {"": 0.0}

    def add(self, amount: float = 1.0, value: str = "") -> None:
        self.values[value] = self.values.get(value, 0.0) + amount

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        extra = [self.label] if self.label else []
        family = CounterMetricFamily(self.name, self.text, labels=[*labels, *extra])
        for value, count in self.values.items():
            family.add_metric([*labels.values(), *([value] if self.label else [])], count)
        yield family


class Gauge:
    """A value that is read from its owner at the scrape."""

    def __init__(self, name: str, text: str, read: Callable[[], float], *, monotonic: bool = False) -> None:
        self.name, self.text, self._read, self._monotonic = name, text, read, monotonic

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if self._monotonic else GaugeMetricFamily
        family = kind(self.name, self.text, labels=list(labels))
        family.add_metric(list(labels.values()), self._read())
        yield family


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    def __init__(self, name: str, text: str, bounds: Iterable[float]) -> None:
        self.name, self.text = name, text
        self.bounds = sorted(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`times` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        from prometheus_client.core import HistogramMetricFamily

        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(repr, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(self.name, self.text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self.sum)
        yield family


class Registry:
    """The instruments of one process, all with the same constant labels."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._instruments: list[Instrument] = []
        self._rendering: Any = None

    def counter(self, name: str, text: str, label: str | None = None) -> Counter:
        return self._add(Counter(name, text, label))

    def gauge(self, name: str, text: str, read: Callable[[], float], *, monotonic: bool = False) -> Gauge:
        return self._add(Gauge(name, text, read, monotonic=monotonic))

    def histogram(self, name: str, text: str, bounds: Iterable[float]) -> Histogram:
        return self._add(Histogram(name, text, bounds))

    def _add(self, instrument: Any) -> Any:
        if any(known.name == instrument.name for known in self._instruments):
            raise ValueError(f"metric {instrument.name} exists already")
        self._instruments.append(instrument)
        return instrument

    def find(self, name: str) -> Instrument:
        """The instrument of this name. Raises KeyError."""
        for instrument in self._instruments:
            if instrument.name == name:
                return instrument
        raise KeyError(name)

    def collect(self) -> Iterator[Any]:
        for instrument in self._instruments:
            yield from instrument.families(self._labels)

    def render(self) -> bytes:
        """All values in the Prometheus text format, with the process's own CPU time, memory and
        descriptors.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import generate_latest

        if self._rendering is None:
            self._rendering = CollectorRegistry()
            self._rendering.register(self)
            ProcessCollector(namespace="firelane", registry=self._rendering)
        return generate_latest(self._rendering)
