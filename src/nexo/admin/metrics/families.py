"""Metrics from tables: each row has a metric's type, name and text, and where its values are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Counter: TypeAlias = CounterMetricFamily
Gauge: TypeAlias = GaugeMetricFamily
Read: TypeAlias = Callable[[Any], float | None]
"""The value of a thing; None if it is not known."""
Row: TypeAlias = tuple[type[Counter] | type[Gauge], str, str, Read]


def families(
    table: Iterable[Row], labels: Mapping[str, Callable[[Any], str]], things: Iterable[Any]
) -> Iterator[Metric]:
    """Each metric of the table, of all things; ``labels`` says how these are called."""
    named = [([read(thing) for read in labels.values()], thing) for thing in things]
    for kind, name, text, read in table:
        family = kind(name, text, labels=[*labels])
        for names, thing in named:
            value = read(thing)
            if value is not None:
                family.add_metric(names, value)
        yield family
