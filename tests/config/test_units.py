"""Durations and sizes, as people write them and as they get them wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from highway.config.units import format_duration, format_rate, format_size, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("100ms", 100),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1d12h30m15s250ms", 131_415_250),
    ],
)
def test_duration(text, milliseconds):
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("512B", 512),
        ("64KiB", 65_536),
        ("64MiB", 67_108_864),
        ("10GB", 10**10),
        ("1 kB", 1000),
        ("1TiB", 2**40),
    ],
)
def test_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, "7 has no unit; write 7ms, 7s, 7m, 7h or 7d"),
        ("7", "7 has no unit"),
        ("1_000", "1_000 has no unit; write 1000ms"),
        ("1.5", "1.5 has no unit"),
        (-1, "-1 is negative"),
        ("-1s", "'-1s' is not a duration"),
        ("1:30:00", "write 1h30m"),
        ("22:30", "'22:30' is a time of day or a duration, nobody can tell; write 22h30m"),
        (".inf", "'.inf' is not a duration"),
        ("1e6", "'1e6' is not a duration"),
        ("7 days", "'7 days' is not a duration: write a number with ms, s, m, h or d"),
        ("1.5h", "'1.5h' is not a duration"),
        ("7D", "'7D' is not a duration"),
        ("30m1h", "out of order"),
        ("1h1h", "out of order"),
        ("", "'' is not a duration"),
        (True, "a duration is wanted here"),
        (None, "a duration is wanted here"),
        ([], "a duration is wanted here"),
    ],
)
def test_duration_refused_with_what_to_write(value, expected):
    with pytest.raises(ValueError) as caught:
        parse_duration(value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1024, "1024 has no unit; write 1024B, 1024KiB, 1024MiB or 1024GiB"),
        ("1_000", "1_000 has no unit"),
        ("1e6", "'1e6' is not a size"),
        ("64M", "'64M' has no unit that is known here; did you mean 64MiB?"),
        ("64mb", "did you mean 64MB?"),
        ("64 Gb", "did you mean 64GB?"),
        ("64XB", "'64XB' has no unit that is known here; write a number with B"),
        (-5, "-5 is negative"),
        ("1.5GiB", "'1.5GiB' is not a size"),
        ("GiB", "'GiB' is not a size"),
        (False, "a size is wanted here"),
    ],
)
def test_size_refused_with_what_to_write(value, expected):
    with pytest.raises(ValueError) as caught:
        parse_size(value)
    assert expected in str(caught.value)


@given(st.integers(0, 10**12))
def test_formatted_duration_reads_back(milliseconds):
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@given(st.integers(0, 2**50))
def test_formatted_size_reads_back(size):
    assert parse_size(format_size(size)) == size


@given(st.text(max_size=20) | st.integers() | st.booleans() | st.none())
def test_anything_is_a_number_or_a_value_error(value):
    for parse in (parse_duration, parse_size):
        try:
            number = parse(value)
        except ValueError:
            continue
        assert number >= 0


def test_shortest_form():
    assert format_duration(0) == "0s"
    assert format_duration(90_000) == "1m30s"
    assert format_size(64 * 2**20) == "64MiB"
    assert format_size(1000) == "1000B"
    assert format_size(0) == "0B"


@pytest.mark.parametrize("text", ["1000/s", "300/m", "1/h"])
def test_rate(text):
    assert format_rate(parse_rate(text)) == text


@pytest.mark.parametrize(("text", "amount"), [("64KiB/s", 65_536), ("1GiB/h", 2**30)])
def test_rate_of_bytes(text, amount):
    assert parse_rate(text, of_bytes=True).amount == amount
    assert format_rate(parse_rate(text, of_bytes=True), of_bytes=True) == text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (1000, "write 1000/s, 1000/m or 1000/h"),
        ("1000", "write 1000/s"),
        ("1000/sec", "1000/s or 300/m"),
        ("1e3/s", "is not a rate"),
        ("-1/s", "is not a rate"),
        (None, "a rate is wanted here"),
    ],
)
def test_no_rate(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_rate(text)


def test_a_rate_of_bytes_needs_its_unit():
    with pytest.raises(ValueError, match="1000 has no unit"):
        parse_rate("1000/s", of_bytes=True)
