"""`/metrics`: every metric of the table, read from the integers of broker and storage at the time of the scrape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from highway.metrics import METRICS, Histogram
from highway.metrics.table import COUNTER, HISTOGRAM

from .room import Room

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from highway.broker import Broker
    from highway.broker.administration import SegmentTotals
    from highway.server.condition import Condition

__all__ = ["Metrics"]

# (label values, value) of each series of one metric; the names of the labels are in the table.
Series = tuple[tuple[str, ...], Any]
_ALONE: tuple[str, ...] = ()


class Metrics(Room):
    """The exposition in Prometheus' text format, or OpenMetrics where it is asked for."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._metrics)]

    async def _metrics(self, request: web.Request) -> web.Response:
        totals = await self.sampler.totals()
        registry = CollectorRegistry(auto_describe=False)
        free_bytes = self.sampler.free_bytes or await asyncio.to_thread(lambda: self.broker.storage.free_bytes)
        registry.register(_Reading(self.broker, self.condition, totals, free_bytes))
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"Content-Type": content_type})


class _Reading(Collector):
    """One scrape. What may grow or shrink is copied in the loop; adding up ten thousand logs is a thread's work."""

    def __init__(self, broker: Broker, condition: Condition, totals: dict[str, SegmentTotals], free_bytes: int) -> None:
        self._broker = broker
        self._condition = condition
        self._feeds = dict(broker.feeds)
        self._connects = dict(broker.counters.connects)
        self._bridges = list(condition.bridges())
        self._certificates = {listener: end for listener, end in condition.certificates().items() if end}
        self._live = self._catchup = 0
        self._lag: dict[str, int] = {}
        for name, feed in broker.feeds.items():
            if not feed.cursors:
                continue
            behind = [feed.visible - cursor.next_offset for cursor in feed.cursors if not cursor.live]
            self._catchup += len(behind)
            self._live += len(feed.cursors) - len(behind)
            self._lag[entry_of(name)] = max(0, self._lag.get(entry_of(name), 0), *behind)
        self._totals = totals
        self._free_bytes = free_bytes

    def collect(self) -> Iterator[Family]:
        values = {**self._clients(), **self._storage(), **self._logs(), **self._others()}
        for name, metric in METRICS.items():
            family = _family(metric.kind, metric.full_name.removesuffix("_total"), metric.help, metric.labels)
            for labels, value in values.pop(name):
                if isinstance(value, Histogram):
                    buckets = [(_bound(bound), count) for bound, count in value.cumulative()]
                    family.add_metric(labels, buckets=buckets, sum_value=value.total)
                else:
                    family.add_metric(labels, value)
            yield family
        assert not values, f"not in the table: {values}"

    def _clients(self) -> dict[str, list[Series]]:
        counters = self._broker.counters
        dropped = {
            "slow": counters.dropped_slow,
            "too_large": counters.dropped_too_large,
            "unmatched": counters.dropped_unmatched,
            "denied": counters.acl_denied,
        }
        states = {
            "live": self._live,
            "catchup": self._catchup,
            "offline": counters.clients_disconnected,
        }
        return {
            "connections": [(_ALONE, counters.connections_open)],
            "connects_total": _by_label(self._connects),
            "publish_received_total": _summed(
                ((str(qos), entry_of(name)), count)
                for name, feed in self._feeds.items()
                for qos, count in enumerate(feed.received)
            ),
            "limited_total": _by_label(counters.limited),
            "publish_sent_total": [(_ALONE, counters.publish_sent)],
            "publish_dropped_total": _by_label(dropped),
            "gap_notices_dropped_total": [(_ALONE, counters.gap_notices_dropped)],
            "subscribers": _by_label(states),
            "offset_not_found_total": [(_ALONE, counters.offset_not_found)],
        }

    def _storage(self) -> dict[str, list[Series]]:
        storage = self._broker.storage
        report = storage.report
        return {
            "append_to_ack_seconds": [((stage.name,), seconds) for stage, seconds in storage.ack_seconds.items()],
            "sync_seconds": [(_ALONE, storage.sync_seconds)],
            "commit_records": [(_ALONE, storage.commit_records)],
            "unsynced_bytes": [(_ALONE, storage.unsynced_bytes + storage.backlog_bytes)],
            "oldest_unsynced_age_seconds": [(_ALONE, storage.oldest_unsynced_age_seconds)],
            "recovery_seconds": [(_ALONE, report.seconds)],
            "recovered_records": [(_ALONE, report.records_recovered)],
            "retention_deleted_bytes_total": _by_label(storage.trimmed["bytes"]),
            "scrubbed_bytes_total": [(_ALONE, storage.scrubber.checked_bytes)],
            "disk_free_bytes": [(_ALONE, self._free_bytes)],
            "read_only": [(_ALONE, int(not storage.writable))],
        }

    def _logs(self) -> dict[str, list[Series]]:
        feeds = self._feeds
        logs = {name: feed.log for name, feed in feeds.items()}
        corrupt = {name: log.corrupt_records for name, log in logs.items()}
        for name, gap in self._broker.storage.report.gaps:
            if gap.reason == "corruption" and name in corrupt:
                corrupt[name] += gap.to_offset - gap.from_offset
        lag = dict.fromkeys(map(entry_of, feeds), 0) | self._lag
        return {
            "log_start_offset": _by_log({name: log.log_start_offset for name, log in logs.items()}),
            "high_watermark": _by_log({name: feed.visible for name, feed in feeds.items()}),
            "log_bytes": _by_log({name: log.stored_bytes for name, log in logs.items()}),
            "log_raw_bytes": _by_log({name: totals.raw_bytes for name, totals in self._totals.items()}),
            "segments": _by_log({name: len(log.writer.segments) for name, log in logs.items()}),
            "catchup_lag_records": _by_label(lag),
            "replayed_records_total": _by_log({name: feed.replayed for name, feed in feeds.items()}),
            "corrupt_records_total": _by_log(corrupt),
            "gap_records": _summed(
                ((entry_of(name), gap.reason), gap.to_offset - gap.from_offset)
                for name, log in logs.items()
                for gap in log.gaps
            ),
        }

    def _others(self) -> dict[str, list[Series]]:
        condition = self._condition
        bridges = self._bridges
        return {
            "reload_success": [(_ALONE, int(condition.reload_error is None))],
            "certificate_expiry_timestamp_seconds": _by_label(self._certificates),
            "plugin_decision_seconds": [(_ALONE, condition.plugin_seconds)],
            "bridge_lag_records": _by_label({bridge.name: bridge.records for bridge in bridges}),
            "bridge_lag_seconds": _by_label({bridge.name: bridge.seconds for bridge in bridges}),
        }


def _by_label(values: dict[str, Any]) -> list[Series]:
    return [((label,), value) for label, value in values.items()]


def entry_of(log: str) -> str:
    """The label of a log: those of one entry with `per_topic` have one together, as there may be a million of them."""
    return log.partition("/")[0]


def _by_log(values: dict[str, Any]) -> list[Series]:
    return _summed(((entry_of(name),), value) for name, value in values.items())


def _summed(series: Iterable[Series]) -> list[Series]:
    sums: dict[tuple[str, ...], Any] = {}
    for labels, value in series:
        sums[labels] = sums.get(labels, 0) + value
    return list(sums.items())


def _family(kind: str, name: str, text: str, labels: tuple[str, ...]) -> Any:
    classes = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}
    return classes.get(kind, GaugeMetricFamily)(name, text, labels=labels)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
