"""The collector that prometheus_client asks at every scrape."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UntypedMetricFamily
from prometheus_client.registry import Collector

from vgpurun.metrics import alnair, hami
from vgpurun.metrics.families import COUNTER, FAMILIES, GAUGE, UNTYPED, Family
from vgpurun.metrics.snapshot import Reader, Snapshot

COMPATIBLE = {"hami": hami.FAMILIES, "alnair": alnair.FAMILIES}
_KINDS = {GAUGE: GaugeMetricFamily, COUNTER: CounterMetricFamily, UNTYPED: UntypedMetricFamily}


class VgpurunCollector(Collector):
    """Makes these families of a look at the time of the scrape: nothing is kept, so nothing goes stale."""

    def __init__(self, reader: Reader, families: Sequence[Family[Any]]) -> None:
        self._reader = reader
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Look, and yield every family that has a sample."""
        snapshot = self._reader.look()
        for family in self._families:
            metric = _metric(family, snapshot)
            if metric.samples:
                yield metric

    def describe(self) -> Iterable[Metric]:
        """Yield the names alone: registering needs no look."""
        return [_KINDS[family.kind](family.name, family.help) for family in self._families]


def _metric(family: Family[Any], snapshot: Snapshot) -> Metric:
    metric: Metric = _KINDS[family.kind](family.name, family.help, labels=tuple(family.scope.labels))
    read_labels = tuple(family.scope.labels.values())
    for row in family.scope.rows(snapshot):
        value = family.value(row)
        if value is not None:
            metric.add_metric([read(row) for read in read_labels], value)  # type: ignore[attr-defined]
    return metric


def make_registry(reader: Reader, compatible: Sequence[str] = ()) -> CollectorRegistry:
    """Return all metrics, in these other tools' names too, and what the exporter itself uses of the host."""
    families = [*FAMILIES, *(family for name in compatible for family in COMPATIBLE[name])]
    registry = CollectorRegistry()
    registry.register(VgpurunCollector(reader, families))
    ProcessCollector(registry=registry)
    return registry
