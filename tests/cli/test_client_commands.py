"""`pub`, `sub` and `fetch` where no broker is needed: wrong usage, and nobody there."""

from __future__ import annotations

import socket

import click
import pytest

from highway.cli.exits import Exit
from highway.cli.sub import replay_filter


@pytest.fixture
def closed_port():
    """A port that nobody listens on: bound, so that nobody takes it either."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pub", "-m", "x"], "Missing option '-t'"),
        (["pub", "-t", "a/#", "-m", "x"], "'a/#' can't be used here: a wildcard in a topic name"),
        (["pub", "-t", "", "-m", "x"], "'' can't be used here: an empty topic name"),
        (["pub", "-t", "a"], "exactly one of -m, -f, -l and -n"),
        (["pub", "-t", "a", "-m", "x", "-n"], "exactly one of -m, -f, -l and -n"),
        (["pub", "-t", "a", "-q", "3", "-m", "x"], "3 is not in the range 0<=x<=2"),
        (["pub", "-t", "a", "-m", "x", "-P"], "a password without a user name (-u)"),
        (["pub", "-t", "a", "-m", "x", "-u", "me", "-P", "secret"], "unexpected extra argument (secret)"),
        (["sub"], "Missing option '-t'"),
        (["sub", "-t", "a", "-c"], "-c needs -i"),
        (["sub", "-t", "a", "-t", "a/#/b"], "'a/#/b' can't be used here: a '#' that is not alone in the last level"),
        (["sub", "-t", "a", "--from", "yesterday"], "<from> is earliest, latest, an offset (1234)"),
        (["sub", "-t", "a", "-C", "0"], "0 is not in the range x>=1"),
        (["sub", "-t", "a", "-W", "0"], "0.0 is not in the range x>0"),
        (["fetch", "a/+", "1"], "'a/+' can't be used here: a wildcard in a topic name"),
        (["fetch", "a"], "Missing argument 'OFFSET'"),
        (["fetch", "a", "x"], "'x' is not a valid integer"),
        (["pub", "-t", "a", "-n", "--cafile", "gone"], "Invalid value for --cafile: gone: No such file or directory"),
        (["pub", "-t", "a", "-n", "--cafile", "."], "Invalid value for --cafile: .: "),
        (["sub", "-t", "a", "--cert", "x"], "--cert and --key are for TLS, which --cafile asks for"),
        (["sub", "-t", "a", "--key", "x"], "--cert and --key are for TLS, which --cafile asks for"),
        (["fetch", "a", "1", "--cafile", "x", "--key", "x"], "--key without the --cert that it belongs to"),
    ],
)
def test_wrong_usage(words, message, highway):
    ran = highway(*words)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert message in ran.err


@pytest.mark.parametrize("words", [["pub", "-t", "a", "-m", "x"], ["sub", "-t", "a"], ["fetch", "a", "1"]])
def test_nobody_there(words, highway, closed_port):
    ran = highway(*words, "-p", str(closed_port))
    assert (ran.code, ran.out) == (Exit.FAILURE, "")
    assert ran.err.startswith(f"Error: no connection to 127.0.0.1:{closed_port}: ")
    assert ran.err.endswith("is a broker running there?\n")


def test_file_that_is_not_there_is_noticed_before_connecting(highway, closed_port):
    ran = highway("pub", "-p", str(closed_port), "-t", "a", "-f", "nope")
    assert (ran.code, ran.err) == (Exit.FAILURE, "Error: nope can't be read: No such file or directory\n")


@pytest.mark.parametrize(
    ("start", "topic_filter", "expected"),
    [
        ("earliest", "a/#", "$replay/earliest/a/#"),
        ("-5", "a", "$replay/-5/a"),
        ("2h", "$share/g/a/+", "$share/g/$replay/2h/a/+"),
        ("@2026-11-29T18:00:00Z", "a", "$replay/@2026-11-29T18:00:00Z/a"),
    ],
)
def test_from_is_written_into_the_filter(start, topic_filter, expected):
    assert replay_filter(start, topic_filter) == expected


@pytest.mark.parametrize("start", ["", "-0", "1.5", "@", "2y", "Earliest"])
def test_from_that_is_none(start):
    with pytest.raises(click.BadParameter):
        replay_filter(start, "a")
