"""Metric instruments that are cheap to write and are read only when scraped.

An instrument belongs to one thread (an event loop); there are no locks. prometheus_client renders them, and
is imported at the first scrape. Where a server has several processes, one of them is told the figures of the
others (`Registry.absorb`), and shows the sums.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from firelane.telemetry.process_sums import ProcessSums

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


Labels = dict[str, str]
Figures = dict[str, float]
"""Values of an instrument, each under a name that tells it from the instrument's others."""
Dump = list[tuple[str, list[str], Figures]]
"""Figures of all instruments of a process: name, values of the constant labels, figures."""
SEPARATOR = "\0"
SUM = "sum"
GONE = -1
"""In place of a process: all that have ended."""


class Instrument:
    """One time series, or one for each set of values of its labels. labels: constant ones, which tell it from
    other instruments of the same name; names: of those that change. others: sums of the figures of other
    processes. grows: its figures outlive their process.
    """

    grows = False
    is_counter = False

    def __init__(self, name: str, text: str, labels: Labels, names: tuple[str, ...] = ()) -> None:
        self.name, self.text, self.labels, self._names = name, text, labels, names
        self.others: Figures = {}

    def figures(self) -> Figures:
        """Figures of this process; none where they are the same in every process."""
        return {}

    def family(self) -> Any:
        """An empty prometheus_client metric family of this name and these labels."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        return kind(self.name, self.text, labels=[*self.labels, *self._names])

    def fill(self, family: Any) -> None:
        """Add the current values to `family`."""
        raise NotImplementedError


InstrumentT = TypeVar("InstrumentT", bound=Instrument)


class Counter(Instrument):
    """Only grows. With `label`, one count for each value of that label."""

    grows = is_counter = True

    def __init__(self, name: str, text: str, label: str | None, labels: Labels) -> None:
        super().__init__(name, text, labels, () if label is None else (label,))
        self.values: Figures = {} if label else {"": 0.0}

    def add(self, amount: float = 1.0, value: str = "") -> None:
        self.values[value] = self.values.get(value, 0.0) + amount

    def figures(self) -> Figures:
        return dict(self.values)

    @property
    def sums(self) -> Figures:
        """Sums of all processes."""
        return _added(self.values, self.others)

    @property
    def total(self) -> int:
        return int(sum(self.sums.values()))

    def fill(self, family: Any) -> None:
        for value, count in self.sums.items():
            family.add_metric([*self.labels.values(), *([value] if self._names else [])], count)


class Table(Instrument):
    """Only grows: one count for each combination of its labels' values."""

    grows = is_counter = True

    def __init__(self, name: str, text: str, names: tuple[str, ...], labels: Labels) -> None:
        super().__init__(name, text, labels, names)
        self.values: dict[tuple[str, ...], int] = {}

    def figures(self) -> Figures:
        return {SEPARATOR.join(values): count for values, count in self.values.items()}

    def add(self, *values: str) -> None:
        self.values[values] = self.values.get(values, 0) + 1

    def fill(self, family: Any) -> None:
        for values, count in _added(self.figures(), self.others).items():
            family.add_metric([*self.labels.values(), *values.split(SEPARATOR)], count)


class LabelledGauge(Instrument):
    """Values that are read from their owner at the scrape, one for each set of labels; every process of a
    server has the same. monotonic: shown as counters."""

    def __init__(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        read: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
        labels: Labels,
        *,
        monotonic: bool,
    ) -> None:
        """names: of the labels whose values `read` gives."""
        super().__init__(name, text, labels, names)
        self._read = read
        self.is_counter = monotonic

    def fill(self, family: Any) -> None:
        for values, level in self._read():
            family.add_metric([*self.labels.values(), *values], level)


class Gauge(Instrument):
    """A value that is read from its owner at the scrape; with `label`, one for each value of that label.
    monotonic: shown as a counter. common: every process of a server has the same."""

    def __init__(
        self,
        name: str,
        text: str,
        read: Callable[[], float | Mapping[str, float]],
        labels: Labels,
        *,
        label: str | None = None,
        monotonic: bool = False,
        common: bool = False,
    ) -> None:
        super().__init__(name, text, labels, () if label is None else (label,))
        self._read, self._common = read, common
        self.grows = self.is_counter = monotonic

    def figures(self) -> Figures:
        return {} if self._common else self._own()

    def _own(self) -> Figures:
        read = self._read()
        return dict(read) if isinstance(read, Mapping) else {"": read}

    def fill(self, family: Any) -> None:
        for value, level in _added(self._own(), self.others).items():
            family.add_metric([*self.labels.values(), *([value] if self._names else [])], level)


class Histogram(Instrument):
    """Counts of observations by upper bound, and their sum."""

    grows = True

    def __init__(self, name: str, text: str, bounds: Iterable[float], labels: Labels) -> None:
        super().__init__(name, text, labels)
        self.bounds = sorted(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def figures(self) -> Figures:
        return {SUM: self.sum, **{str(place): count for place, count in enumerate(self.counts) if count}}

    @property
    def all_counts(self) -> list[int]:
        """Counts of all processes."""
        return [count + int(self.others.get(str(place), 0)) for place, count in enumerate(self.counts)]

    @property
    def all_sum(self) -> float:
        return self.sum + self.others.get(SUM, 0.0)

    def observe(self, value: float, times: int = 1) -> None:
        """`times` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(self) -> Any:
        from prometheus_client.core import HistogramMetricFamily

        return HistogramMetricFamily(self.name, self.text, labels=list(self.labels))

    def fill(self, family: Any) -> None:
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(repr, self.bounds), "+Inf"], self.all_counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(list(self.labels.values()), buckets, self.all_sum)


def _added(own: Figures, others: Figures) -> Figures:
    if not others:
        return own
    return own | {name: own.get(name, 0.0) + figure for name, figure in others.items()}


class Registry:
    """The instruments of one process. Instruments of one name differ in their constant labels. pids: of all
    processes of the server."""

    def __init__(self) -> None:
        self.pids: Callable[[], Iterable[int]] = lambda: (os.getpid(),)
        self._dumps: dict[int, dict[tuple[str, ...], Figures]] = {}
        self._labels: Labels = {}
        self._instruments: dict[str, list[Instrument]] = {}
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

    def gauge(
        self,
        name: str,
        text: str,
        read: Callable[[], float],
        *,
        monotonic: bool = False,
        common: bool = False,
    ) -> Gauge:
        return self._add(Gauge(name, text, read, self._labels, monotonic=monotonic, common=common))

    def gauges(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]) -> Gauge:
        """One for each value of `label`; every process of a server has the same."""
        return self._add(Gauge(name, text, read, self._labels, label=label, common=True))

    def counts(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]) -> Gauge:
        """Counters, one for each value of `label`, that are read from their owner."""
        return self._add(Gauge(name, text, read, self._labels, label=label, monotonic=True))

    def levels(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        read: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
        *,
        monotonic: bool = False,
    ) -> LabelledGauge:
        return self._add(LabelledGauge(name, text, names, read, self._labels, monotonic=monotonic))

    def histogram(self, name: str, text: str, bounds: Iterable[float]) -> Histogram:
        return self._add(Histogram(name, text, bounds, self._labels))

    def _add(self, instrument: InstrumentT) -> InstrumentT:
        known: list[Instrument] = self._instruments.setdefault(instrument.name, [])
        if any(other.labels == instrument.labels for other in known):
            raise ValueError(f"metric {instrument.name} exists already")
        known.append(instrument)
        return instrument

    # ---- several processes

    def dump(self) -> Dump:
        """For the process that shows the sums."""
        every = (instrument for known in self._instruments.values() for instrument in known)
        return [(one.name, list(one.labels.values()), one.figures()) for one in every]

    def absorb(self, process: int, dump: Dump) -> None:
        """Figures of another process, in place of those that it sent before."""
        self._dumps[process] = {(name, *labels): figures for name, labels, figures in dump}
        self._add_up()

    def end(self, process: int) -> None:
        """A process is no more: what it counted stays."""
        last, gone = self._dumps.pop(process, {}), self._dumps.setdefault(GONE, {})
        for key, figures in last.items():
            gone[key] = _added(gone.get(key, {}), figures)
        self._add_up()

    def _add_up(self) -> None:
        for known in self._instruments.values():
            for one in known:
                one.others, key = {}, (one.name, *one.labels.values())
                for process, dump in self._dumps.items():
                    if one.grows or process != GONE:
                        one.others = _added(dump.get(key, {}), one.others)

    def collect(self) -> Iterator[Any]:
        for instruments in self._instruments.values():
            family = instruments[0].family()
            for instrument in instruments:
                instrument.fill(family)
            yield family

    def render(self) -> bytes:
        """All values in the Prometheus text format, with the CPU time, memory and descriptors of the
        processes.
        """
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import generate_latest

        if self._rendering is None:
            self._rendering = CollectorRegistry()
            self._rendering.register(self)
            self._rendering.register(ProcessSums(lambda: self.pids()))
        return generate_latest(self._rendering)
