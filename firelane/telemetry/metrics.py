"""Metric instruments that are cheap to write and are read only when scraped.

An instrument belongs to one thread (an event loop); there are no locks. prometheus_client renders them, and
is imported at the first scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


Labels = dict[str, str]


class Instrument(Protocol):
    """One time series, or one for each value of a label. labels: constant ones, which tell it from other
    instruments of the same name.
    """

    name: str
    labels: Labels

    def family(self) -> Any:
        """An empty prometheus_client metric family of this name and these labels."""
        ...

    def fill(self, family: Any) -> None:
        """Add the current values to `family`."""
        ...


class Counter:
    """Only grows. With `label`, one count for each value of that label."""

    def __init__(self, name: str, text: str, label: str | None = None, labels: Labels | None = None) -> None:
        self.name, self.text, self.label = name, text, label
        self.labels = labels or {}
        self.values: dict[str, float] = {} if label else {"": 0.0}

    def add(self, amount: float = 1.0, value: str = "") -> None:
        self.values[value] = self.values.get(value, 0.0) + amount

    @property
    def total(self) -> int:
        return int(sum(self.values.values()))

    def family(self) -> Any:
        from prometheus_client.core import CounterMetricFamily

        extra = [self.label] if self.label else []
        return CounterMetricFamily(self.name, self.text, labels=[*self.labels, *extra])

    def fill(self, family: Any) -> None:
        for value, count in self.values.items():
            family.add_metric([*self.labels.values(), *([value] if self.label else [])], count)


class Table:
    """Only grows: one count for each combination of its labels' values."""

    def __init__(self, name: str, text: str, names: tuple[str, ...], labels: Labels | None = None) -> None:
        self.name, self.text, self._names = name, text, names
        self.labels = labels or {}
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *values: str) -> None:
        self.values[values] = self.values.get(values, 0) + 1

    def family(self) -> Any:
        from prometheus_client.core import CounterMetricFamily

        return CounterMetricFamily(self.name, self.text, labels=[*self.labels, *self._names])

    def fill(self, family: Any) -> None:
        for values, count in self.values.items():
            family.add_metric([*self.labels.values(), *values], count)


class Facts:
    """Facts as the labels of a gauge that is 1, one for each set of them."""

    def __init__(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        read: Callable[[], Iterable[Labels]],
        labels: Labels,
    ) -> None:
        """names: of the labels that `read` gives."""
        self.name, self.text, self._names, self._read, self.labels = name, text, names, read, labels

    def family(self) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        return GaugeMetricFamily(self.name, self.text, labels=[*self.labels, *self._names])

    def fill(self, family: Any) -> None:
        for facts in self._read():
            family.add_metric([*self.labels.values(), *(facts[name] for name in self._names)], 1)


class Levels:
    """Values that are read from their owner at the scrape, one for each set of labels. monotonic: shown as
    counters."""

    def __init__(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        read: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
        *,
        monotonic: bool,
    ) -> None:
        """names: of the labels whose values `read` gives."""
        self.name, self.text, self._names, self._read = name, text, names, read
        self.labels: Labels = {}
        self._monotonic = monotonic

    def family(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if self._monotonic else GaugeMetricFamily
        return kind(self.name, self.text, labels=list(self._names))

    def fill(self, family: Any) -> None:
        for values, level in self._read():
            family.add_metric(list(values), level)


class Gauge:
    """A value that is read from its owner at the scrape; with `label`, one for each value of that label.
    monotonic: shown as a counter."""

    def __init__(
        self,
        name: str,
        text: str,
        read: Callable[[], float | Mapping[str, float]],
        labels: Labels | None = None,
        *,
        label: str | None = None,
        monotonic: bool = False,
    ) -> None:
        self.name, self.text, self._read, self._monotonic = name, text, read, monotonic
        self.label = label
        self.labels = labels or {}

    def family(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if self._monotonic else GaugeMetricFamily
        return kind(self.name, self.text, labels=[*self.labels, *([self.label] if self.label else [])])

    def fill(self, family: Any) -> None:
        read, labels = self._read(), list(self.labels.values())
        if isinstance(read, Mapping):
            for value, level in read.items():
                family.add_metric([*labels, value], level)
        else:
            family.add_metric(labels, read)


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    def __init__(self, name: str, text: str, bounds: Iterable[float], labels: Labels | None = None) -> None:
        self.name, self.text = name, text
        self.labels = labels or {}
        self.bounds = sorted(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """`times` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(self) -> Any:
        from prometheus_client.core import HistogramMetricFamily

        return HistogramMetricFamily(self.name, self.text, labels=list(self.labels))

    def fill(self, family: Any) -> None:
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(repr, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(list(self.labels.values()), buckets, self.sum)


class Registry:
    """The instruments of one process. Instruments of one name differ in their constant labels."""

    def __init__(self) -> None:
        self._labels: Labels = {}
        self._instruments: dict[str, list[Any]] = {}
        self._rendering: Any = None

    def labelled(self, **labels: str) -> Registry:
        """A view of this registry whose new instruments carry these labels."""
        view = Registry()
        view._labels, view._instruments = labels, self._instruments
        return view

    def counter(self, name: str, text: str, label: str | None = None) -> Counter:
        return self._add(Counter(name, text, label, self._labels))

    def table(self, name: str, text: str, *names: str) -> Table:
        return self._add(Table(name, text, names, self._labels))

    def facts(
        self, name: str, text: str, names: tuple[str, ...], read: Callable[[], Iterable[Labels]]
    ) -> Facts:
        return self._add(Facts(name, text, names, read, self._labels))

    def gauge(self, name: str, text: str, read: Callable[[], float], *, monotonic: bool = False) -> Gauge:
        return self._add(Gauge(name, text, read, self._labels, monotonic=monotonic))

    def gauges(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]) -> Gauge:
        """One for each value of `label`."""
        return self._add(Gauge(name, text, read, self._labels, label=label))

    def levels(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        read: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
        *,
        monotonic: bool = False,
    ) -> Levels:
        return self._add(Levels(name, text, names, read, monotonic=monotonic))

    def histogram(self, name: str, text: str, bounds: Iterable[float]) -> Histogram:
        return self._add(Histogram(name, text, bounds, self._labels))

    def _add(self, instrument: Any) -> Any:
        known: list[Instrument] = self._instruments.setdefault(instrument.name, [])
        if any(other.labels == instrument.labels for other in known):
            raise ValueError(f"metric {instrument.name} exists already")
        known.append(instrument)
        return instrument

    def collect(self) -> Iterator[Any]:
        for instruments in self._instruments.values():
            family = instruments[0].family()
            for instrument in instruments:
                instrument.fill(family)
            yield family

    def render(self) -> bytes:
        """All values in the Prometheus text format, with the process's own CPU time, memory and
        descriptors.
        """
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import generate_latest

        if self._rendering is None:
            self._rendering = CollectorRegistry()
            self._rendering.register(self)
            ProcessCollector(registry=self._rendering)
        return generate_latest(self._rendering)
