"""The limits: documented with their true defaults, and the same on the way to the broker's settings and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from highway.broker.settings import BrokerSettings
from highway.broker.token_bucket import Rate, TokenBucket
from highway.config.limits import LimitsSection, limits_of, limits_section

README = Path(__file__).parents[2] / "README.md"


def test_table_in_the_readme_has_every_limit_with_its_default_and_why():
    rows = re.findall(r"^\| `([a-z_]+)` \| `([^`]+)` \| ([^|]+) \|$", README.read_text("utf-8"), flags=re.MULTILINE)
    written = {key: default for key, default, why in rows if why.strip()}
    assert written == {key: str(value) for key, value in LimitsSection().model_dump().items()}


def test_settings_come_back_as_they_were_written():
    written = {
        "max_connections_per_address": 7,
        "publish_rate": "1000/s",
        "publish_bytes": "64KiB/m",
        "reconnect_rate": "unlimited",
        "connect_timeout": "1500ms",
        "max_connect_packet": "2KiB",
        "max_retained_bytes": "0B",
        "max_keep_alive": "30s",
    }
    settings = BrokerSettings(**limits_of(LimitsSection(**written)))
    assert settings.publish_rate == Rate(1000, 1)
    assert settings.reconnect_rate is None
    again = limits_section(settings)
    assert {key: again[key] for key in written} == {**written, "connect_timeout": "1s500ms"}


@pytest.mark.parametrize("text", ["0/s", "1000001/s"])
def test_a_rate_out_of_range_is_refused(text):
    with pytest.raises(ValueError, match="out of range: 1/h to 1000000/s or unlimited"):
        LimitsSection(reconnect_rate=text)


def test_a_bucket_lets_a_burst_through_and_then_the_rate():
    bucket = TokenBucket(Rate(60, 60), 100.0)
    assert bucket.take(60, 100.0) == 0.0
    assert bucket.take(5, 100.0) == pytest.approx(5.0)
    assert bucket.take(0, 103.0) == pytest.approx(2.0)
    assert bucket.take(0, 105.0) == 0.0
    assert bucket.left(164.0) == pytest.approx(59.0)
    assert bucket.left(165.0) == 60.0
    assert bucket.left(10_000.0) == 60.0
