"""Log lines: fields, one line each whatever is in them, and repetitions that are counted."""

from __future__ import annotations

import gc
import io
import json
import logging
import weakref

import pytest

from highway.log_lines import MAX_FAULTS, MAX_LINES, REPEAT_S, LoggingSettings, LogLines, about

NASTY = "a\nERROR forged\r\x1b[31m\x7f\x85\u2028\u202e\ud800 b"


class Told:
    """A handler of its own on a logger of its own, with a clock that stands."""

    def __init__(self, settings=None):
        self.stream = io.StringIO()
        self.now = 100.0
        self.handler = LogLines(self.stream, clock=lambda: self.now)
        root = logging.getLogger()
        self.levels = root.level, *(logging.getLogger(name).level for name in ("websockets", "asyncio"))
        self.handler.apply(settings or LoggingSettings())
        self.logger = logging.getLogger("highway.test")
        self.logger.propagate = False
        self.logger.addHandler(self.handler)

    @property
    def lines(self):
        return self.stream.getvalue().splitlines()

    def close(self):
        self.logger.removeHandler(self.handler)
        self.logger.propagate = True
        for name, level in zip(("", "websockets", "asyncio"), self.levels, strict=True):
            logging.getLogger(name).setLevel(level)


@pytest.fixture
def tell():
    opened = []

    def tell(**settings):
        opened.append(Told(LoggingSettings(**settings)))
        return opened[-1]

    yield tell
    for told in opened:
        told.close()


def test_a_text_line_has_its_fields_behind_the_sentence(tell):
    told = tell()
    told.logger.warning("closed: %s", "packet id 0", extra=about(client="s1", peer="10.0.0.7:5", topic=b"a/b"))
    told.logger.info("session expired", extra=about(client="a b"))
    told.logger.info("started")
    assert told.lines == [
        "WARNING highway.test: closed: packet id 0 client=s1 peer=10.0.0.7:5 topic=a/b",
        'INFO highway.test: session expired client="a b"',
        "INFO highway.test: started",
    ]


def test_a_json_line_has_fields_of_their_own(tell):
    told = tell(format="json")
    told.logger.warning("closed: %s", "late", extra=about(client=NASTY, topic=b"\xff/x"))
    (line,) = told.lines
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "warning",
        "logger": "highway.test",
        "message": "closed: late",
        "client": NASTY,
        "topic": "\\xff/x",
    }
    assert line.isascii()


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_begins_a_line_of_its_own_or_moves_the_cursor(form, tell):
    told = tell(format=form)
    told.logger.error("refused: %s", NASTY, extra=about(client=NASTY, peer=NASTY, topic=NASTY))
    try:
        raise ValueError(NASTY)
    except ValueError:
        told.logger.exception("fault")
    text = told.stream.getvalue()
    assert text.count("\n") == 2
    assert text.replace("\n", "").isprintable()
    assert "Traceback" in text


def test_a_fault_is_told_once_a_minute_with_a_count(tell):
    told = tell()

    def fail(client="s1", why="packet id 0", port=1):
        told.logger.warning("closed: %s", why, extra=about(client=client, peer=f"10.0.0.7:{port}"))

    for port in range(5):
        fail(port=port)
    fail(client="s2")
    fail(why="another fault")
    assert len(told.lines) == 3
    told.now += REPEAT_S - 1
    told.handler.flush_repeated()
    assert len(told.lines) == 3
    told.now += 1
    fail(port=9)
    assert told.lines[3:] == [
        "WARNING highway.test: closed: packet id 0 client=s1 peer=10.0.0.7:9 (and 4 more times since)"
    ]


def test_a_fault_that_stopped_is_counted_when_its_minute_is_over(tell):
    told = tell(format="json")
    for _ in range(3):
        told.logger.warning("closed", extra=about(peer="10.0.0.7:1"))
        told.logger.warning("once", extra=about(peer=f"[::1]:{told.now:g}"))
        told.now += 1
    told.now += REPEAT_S
    told.handler.flush_repeated()
    told.handler.flush_repeated()
    found = [(json.loads(line)["message"], json.loads(line).get("repeated")) for line in told.lines]
    assert found == [("closed", None), ("once", None), ("closed", 2), ("once", 2)]


def test_lines_about_no_client_are_all_told(tell):
    told = tell()
    for _ in range(3):
        told.logger.warning("the disk is full")
    assert len(told.lines) == 3


def test_the_faults_remembered_are_bounded_and_none_is_lost(tell):
    told = tell()
    for _ in range(2):
        told.logger.warning("closed", extra=about(client="first"))
    for number in range(MAX_FAULTS):
        told.now += 2 * REPEAT_S / MAX_LINES
        told.logger.warning("closed", extra=about(client=str(number)))
    assert len(told.handler._faults) == MAX_FAULTS
    assert [line for line in told.lines if "first" in line][1:] == [
        "WARNING highway.test: closed client=first (and 1 more times since)"
    ]


def test_levels_can_be_changed_while_it_runs(tell):
    told = tell(level="warning")
    told.logger.info("quiet")
    told.handler.apply(LoggingSettings(level="debug"))
    told.logger.debug("loud")
    assert told.lines == ["DEBUG highway.test: loud"]
    assert logging.getLogger("websockets").level == logging.WARNING, "its lowest level writes payloads"


def test_a_stream_that_is_gone_ends_nothing(tell):
    told = tell()
    told.stream.close()
    told.logger.error("said to nobody")
    assert told.stream.closed


def test_what_is_remembered_of_a_line_holds_nothing_that_it_was_made_of(tell):
    class Payload:
        pass

    def fail():
        payload = Payload()
        kept.append(weakref.ref(payload))
        raise ValueError("too large")

    told, kept = tell(), []
    for level in (logging.WARNING, logging.ERROR):
        try:
            fail()
        except ValueError as error:
            told.logger.log(
                level, "closed: %s", error, extra=about(client=f"c{level}"), exc_info=level > logging.WARNING
            )
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


def test_clients_that_make_up_names_and_faults_fill_no_disk(tell):
    told = tell()
    for number in range(MAX_LINES + 5000):
        told.logger.warning("closed: %s", f"fault {number}", extra=about(client=f"c{number}"))
        told.logger.info("taken over", extra=about(client=f"c{number}"))
    told.logger.info("started")
    assert MAX_LINES < len(told.lines) < MAX_LINES + 5
    assert told.lines[-1] == "INFO highway.test: started"
    told.now += REPEAT_S
    told.handler.flush_repeated()
    assert told.lines[-2:] == [
        f"WARNING highway.test: of many clients: closed: ... (and {MAX_LINES // 2 + 4999} more times since)",
        f"INFO highway.test: of many clients: taken over (and {MAX_LINES // 2 + 4999} more times since)",
    ]
    told.logger.warning("closed: %s", "fault", extra=about(client="c1"))
    assert told.lines[-1] == "WARNING highway.test: closed: fault client=c1"
