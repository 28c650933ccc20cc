"""The grammar of `<from>` word by word, and the special topic filters."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from hypothesis import given, strategies as st

from highway.broker.replay.grammar import (
    FetchRequest,
    From,
    FromKind,
    RangeRequest,
    ReplayRequest,
    parse_from,
    parse_special,
)
from highway.errors import ProtocolError

NOW = 1_790_000_000_000


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (b"earliest", FromKind.EARLIEST, 0),
        (b"latest", FromKind.LATEST, 0),
        (b"0", FromKind.OFFSET, 0),
        (b"1234", FromKind.OFFSET, 1234),
        (b"9223372036854775807", FromKind.OFFSET, 2**63 - 1),
        (b"-1", FromKind.LAST, 1),
        (b"-100", FromKind.LAST, 100),
        (b"@1790000000000", FromKind.TIME, 1_790_000_000_000),
        (b"@0", FromKind.TIME, 0),
        (b"@2026-11-29T18:00:00Z", FromKind.TIME, 1_795_975_200_000),
        (b"@2026-11-29t18:00:00z", FromKind.TIME, 1_795_975_200_000),
        (b"@2026-11-29T18:00:00.5Z", FromKind.TIME, 1_795_975_200_500),
        (b"@2026-11-29T18:00:00.123999Z", FromKind.TIME, 1_795_975_200_123),
        (b"@2026-11-29T20:00:00+02:00", FromKind.TIME, 1_795_975_200_000),
        (b"@2026-11-29T12:30:00-05:30", FromKind.TIME, 1_795_975_200_000),
        (b"@2016-12-31T23:59:60Z", FromKind.TIME, 1_483_228_800_000),
        (b"@1960-01-01T00:00:00Z", FromKind.TIME, 0),
        (b"90s", FromKind.TIME, NOW - 90_000),
        (b"15m", FromKind.TIME, NOW - 900_000),
        (b"2h", FromKind.TIME, NOW - 7_200_000),
        (b"7d", FromKind.TIME, NOW - 604_800_000),
        (b"999999999999d", FromKind.TIME, 0),
    ],
)
def test_every_form(text: bytes, kind: FromKind, value: int) -> None:
    assert parse_from(text, NOW) == From(kind, value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"now",
        b"EARLIEST",
        b" 12",
        b"12 ",
        b"+5",
        b"1_000",
        b"1e3",
        b"0x10",
        "١٢".encode(),
        b"9223372036854775808",
        b"9" * 5000,
        b"-",
        b"-0",
        b"--1",
        b"-1.5",
        b"@",
        b"@-5",
        b"@12.5",
        b"@9223372036854775808",
        b"@yesterday",
        b"@2026-11-29",
        b"@2026-11-29T18:00Z",
        b"@2026-11-29T18:00:00",
        b"@2026-11-29 18:00:00Z",
        b"@2026-02-30T00:00:00Z",
        b"@2026-11-29T24:00:00Z",
        b"@2026-11-29T18:00:61Z",
        b"@2026-11-29T18:00:00+24:00",
        b"@2026-11-29T18:00:00+02:60",
        b"m",
        b"15M",
        b"1w",
        b"1h30m",
        b"1.5h",
        b"-15m",
        b"\xff\xfe",
    ],
)
def test_what_does_not_parse_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="is refused: ") as refused:
        parse_from(text, NOW)
    assert refused.value.reason_code == 0x8F
    assert len(str(refused.value)) < 500


@given(st.datetimes(), st.integers(-1439, 1439))
def test_rfc_3339_agrees_with_datetime(moment: dt.datetime, offset_minutes: int) -> None:
    zone = dt.timezone(dt.timedelta(minutes=offset_minutes))
    aware = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=zone)
    expected = (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    text = b"@" + aware.isoformat(timespec="milliseconds").encode()
    assert parse_from(text, NOW) == From(FromKind.TIME, max(0, expected))


@given(st.binary(max_size=30))
def test_any_bytes_parse_or_are_refused(text: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert parse_from(text, NOW).value >= 0


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (b"a/b", None),
        (b"#", None),
        (b"$SYS/#", None),
        (b"$share/g/a", None),
        (b"$replayed/earliest/a", None),
        (b"$replay/earliest/a/#", ReplayRequest(From(FromKind.EARLIEST), b"earliest", b"a/#", False)),
        (b"$replay/-5/a", ReplayRequest(From(FromKind.LAST, 5), b"-5", b"a", False)),
        (b"$replay/15m//a", ReplayRequest(From(FromKind.TIME, NOW - 900_000), b"15m", b"/a", False)),
        (b"$log/17/+/b", ReplayRequest(From(FromKind.OFFSET, 17), b"17", b"+/b", True)),
        (b"$fetch/17/a/b", FetchRequest(17, b"a/b")),
        (b"$range/a/b", RangeRequest(b"a/b")),
    ],
)
def test_special_filters(topic_filter: bytes, expected: object) -> None:
    assert parse_special(topic_filter, NOW) == expected


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        (b"$replay", "<from> is"),
        (b"$replay/", "<from> is"),
        (b"$replay/earliest", "the form is"),
        (b"$replay/earliest/", "the form is"),
        (b"$replay/soon/a", "<from> is"),
        (b"$replay/#", "<from> is"),
        (b"$replay/+/a", "<from> is"),
        (b"$replay/earliest/$SYS/#", "never stored"),
        (b"$log/earliest/$log/earliest/a", "never stored"),
        (b"$fetch", "the form is"),
        (b"$fetch/17", "the form is"),
        (b"$fetch/x/a", "whole number"),
        (b"$fetch/-1/a", "whole number"),
        (b"$fetch/earliest/a", "whole number"),
        (b"$fetch/17/a/+", "without wildcards"),
        (b"$fetch/17/$SYS/x", "never stored"),
        (b"$range", "the form is"),
        (b"$range/", "the form is"),
        (b"$range/a/#", "without wildcards"),
    ],
)
def test_malformed_special_filters_are_refused_by_name(topic_filter: bytes, rule: str) -> None:
    with pytest.raises(ProtocolError, match=rule) as refused:
        parse_special(topic_filter, NOW)
    assert refused.value.reason_code == 0x8F
