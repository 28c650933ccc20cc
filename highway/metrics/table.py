"""The table of metrics, once: name, kind, unit, labels, and a sentence that also says what is *not* counted.

The exposition, README and the test of both are made from it. Names have base units; `_total` is on counters only. Logs
are labels, topics never are: there may be a million of them. The logs of an entry with `per_topic` are added up.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COUNTER", "GAUGE", "HISTOGRAM", "METRICS", "PREFIX", "Metric"]

PREFIX = "highway_"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Metric(NamedTuple):
    """One metric family; `name` is without the prefix, and with the `_total` of a counter."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        """The name under which it is exposed."""
        return PREFIX + self.name

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series, as queries use them."""
        if self.kind == HISTOGRAM:
            return tuple(self.full_name + suffix for suffix in ("_bucket", "_sum", "_count"))
        return (self.full_name,)


_LOG = ("log",)

_ROWS = (
    Metric(
        "connections",
        GAUGE,
        "connections",
        (),
        "Open network connections of MQTT clients, with those that have not sent CONNECT yet; not HTTP.",
    ),
    Metric(
        "connects_total",
        COUNTER,
        "packets",
        ("result",),
        "Answered CONNECTs: accepted, or the reason code of the refusal; not connections that ended before it.",
    ),
    Metric(
        "publish_received_total",
        COUNTER,
        "messages",
        ("qos", "log"),
        "Messages that a log took; not those that were denied, refused, repetitions, or on topics without a log.",
    ),
    Metric(
        "publish_sent_total",
        COUNTER,
        "messages",
        (),
        "PUBLISH packets written to clients, repetitions and retained messages included; not acknowledgements.",
    ),
    Metric(
        "publish_dropped_total",
        COUNTER,
        "messages",
        ("reason",),
        "Messages that somebody did not get: slow (in no log), too_large for the reader, unmatched by any entry, or"
        " denied to the publisher; not what a slow reader will still get from its log.",
    ),
    Metric(
        "limited_total",
        COUNTER,
        "times",
        ("limit",),
        "How often a limit of the configuration bit, by its key; not the clients or messages that it concerned.",
    ),
    Metric(
        "append_to_ack_seconds",
        HISTOGRAM,
        "seconds",
        ("durability",),
        "From append to acknowledgement, one value a commit: the longest wait in it; not FAST, which is"
        " acknowledged at the append.",
    ),
    Metric(
        "sync_seconds",
        HISTOGRAM,
        "seconds",
        (),
        "One fdatasync of the journal and reading back what it made durable; not syncs of segments.",
    ),
    Metric(
        "commit_records",
        HISTOGRAM,
        "records",
        (),
        "Records in one frame of the journal; not session state, and no frame without records.",
    ),
    Metric("log_start_offset", GAUGE, "offset", _LOG, "First offset that may be readable; not the first ever."),
    Metric("high_watermark", GAUGE, "offset", _LOG, "Offset behind the last visible record; not what is delayed."),
    Metric("log_bytes", GAUGE, "bytes", _LOG, "Segments on the disk; not the journal, nor the newest in memory."),
    Metric("log_raw_bytes", GAUGE, "bytes", _LOG, "The records of the segments before compression; not the journal."),
    Metric("segments", GAUGE, "files", _LOG, "Segment files, the active one included; not the journal's files."),
    Metric(
        "unsynced_bytes",
        GAUGE,
        "bytes",
        (),
        "What a power cut now would take: written to the journal or waiting for it, and not synced.",
    ),
    Metric(
        "oldest_unsynced_age_seconds",
        GAUGE,
        "seconds",
        (),
        "Age of the oldest record that a power cut now would take; 0 if there is none.",
    ),
    Metric(
        "subscribers",
        GAUGE,
        "positions",
        ("state",),
        "Positions of online sessions and groups in logs: live or catchup; offline counts sessions that are away.",
    ),
    Metric(
        "catchup_lag_records",
        GAUGE,
        "records",
        _LOG,
        "What the online reader that is furthest behind has still to get; not sessions that are away.",
    ),
    Metric(
        "replayed_records_total",
        COUNTER,
        "records",
        _LOG,
        "Records sent to readers from the log; not live, nor by shared subscriptions, HTTP or fetch.",
    ),
    Metric(
        "offset_not_found_total",
        COUNTER,
        "requests",
        (),
        "Fetches, by MQTT or HTTP, of an offset that is not there; not subscriptions that start beyond the end.",
    ),
    Metric(
        "corrupt_records_total",
        COUNTER,
        "offsets",
        _LOG,
        "Offsets found damaged since the start, by recovery or by reading; not damage that an earlier run found.",
    ),
    Metric(
        "gap_records",
        GAUGE,
        "offsets",
        ("log", "reason"),
        "Offsets of the log that hold nothing, and why; unclean-stop means never used, so nothing was lost there.",
    ),
    Metric(
        "gap_notices_dropped_total",
        COUNTER,
        "gaps",
        (),
        "Gaps that no delivery had room to tell an MQTT 5 client of, for its Maximum Packet Size; not those that only"
        " waited.",
    ),
    Metric("recovery_seconds", GAUGE, "seconds", (), "How long the last start took to open the data directory."),
    Metric(
        "recovered_records",
        GAUGE,
        "records",
        (),
        "Records that the last start took from the journal; not those that segments had already.",
    ),
    Metric(
        "retention_deleted_bytes_total",
        COUNTER,
        "bytes",
        ("reason",),
        "Segments deleted since the start, by age or by size; not what an operator deleted.",
    ),
    Metric(
        "scrubbed_bytes_total",
        COUNTER,
        "bytes",
        (),
        "Read again by the scrub since the start and checked; not what readers and maintenance read.",
    ),
    Metric("disk_free_bytes", GAUGE, "bytes", (), "Free for the broker on the data directory's file system."),
    Metric("read_only", GAUGE, "0 or 1", (), "1 while the disk takes nothing and publishes are refused."),
    Metric("reload_success", GAUGE, "0 or 1", (), "0 from a failed reload to the next good one; 1 without any."),
    Metric(
        "certificate_expiry_timestamp_seconds",
        GAUGE,
        "seconds",
        ("listener",),
        "Unix time at which the certificate that a TLS listener serves expires; nothing for one that is not valid yet.",
    ),
    Metric(
        "plugin_decision_seconds",
        HISTOGRAM,
        "seconds",
        (),
        "How long authentication and topic plugins took to decide; not decisions that were remembered.",
    ),
    Metric("bridge_lag_records", GAUGE, "records", ("bridge",), "Records that a bridge has still to send."),
    Metric(
        "bridge_lag_seconds",
        GAUGE,
        "seconds",
        ("bridge",),
        "Age of the oldest record that a bridge has still to send; 0 if there is none.",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ROWS}
