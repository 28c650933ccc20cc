"""Files, environment and command line together: what takes effect, and that all of what is wrong is said."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import referencing
import yaml
from hypothesis import given, settings, strategies as st

from highway.broker.settings import BrokerSettings, TopicEntry
from highway.config.loading import Overrides, find_data_dir, load_settings, shipped_text
from highway.config.models import Listener
from highway.config.rendering import to_tree, to_yaml
from highway.config.schema import ConfigFile, LogKeys, json_schema, topics_json_schema
from highway.errors import ConfigError
from highway.log_lines import LoggingSettings
from highway.storage.settings import Durability, LogSettings, StorageSettings

ROOT = Path(__file__).parents[2]
DAY_MS = 24 * 60 * 60 * 1000

OTHER = LogSettings("other", retention_ms=DAY_MS, retention_bytes=256 * 2**20)


@pytest.fixture
def load(tmp_path):
    def load(text, environ=None, **overrides):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load_settings(path, environ=environ or {}, overrides=Overrides(**overrides))

    return load


@pytest.fixture
def problems(load, tmp_path):
    def problems(text, environ=None, **overrides):
        with pytest.raises(ConfigError) as caught:
            load(text, environ, **overrides)
        return [line.replace(f"{tmp_path}/", "") for line in caught.value.problems]

    return problems


def test_without_a_file():
    settings = load_settings(environ={})
    assert settings.data_dir == Path("highway-data")
    assert settings.listeners == (Listener("local", "127.0.0.1", 1883),)
    assert settings.broker == BrokerSettings(
        entries=(
            TopicEntry(b"highway/+/telemetry", "telemetry"),
            TopicEntry(b"highway/+/control", "control"),
            TopicEntry(b"#", "other"),
        )
    )
    assert settings.storage == StorageSettings()
    assert settings.logs == (
        LogSettings("telemetry", Durability.BALANCED, retention_bytes=10 * 2**30),
        LogSettings("control", Durability.SAFE, retention_ms=90 * DAY_MS),
        OTHER,
    )
    assert settings.warnings == ()


def test_file_that_leaves_everything_to_defaults(load, tmp_path):
    settings = load("unmatched: store\n")
    assert settings.data_dir == tmp_path / "highway-data"
    assert settings.logs == (OTHER,)
    assert settings.broker == BrokerSettings()
    assert settings.storage == StorageSettings()
    assert LogSettings("x").durability.name == LogKeys().durability


def test_every_key_arrives(load, tmp_path):
    settings = load(
        """
data_dir: /srv/highway
memory_budget: 2MiB
listeners: {a: {bind: "::1", port: 1}, b: {port: 0}}
insecure: true
auth: {anonymous: true}
logging: {format: json, level: warning}
reload: {watch: 5s}
limits:
  {max_connections: 1, max_packet: 2KiB, connect_timeout: 3s, max_inflight: 4, max_keep_alive: 1m30s,
   receive_maximum: 6,
   max_subscriptions: 5, session_expiry: unlimited, write_buffer: 7KiB}
unmatched: reject
topics:
  - {topic: a/+, log: one, durability: FAST, delay: 1s, retention: 2s, retention_bytes: 3MiB, segment_bytes: 1MiB,
     flush_interval: 4ms, flush_bytes: 5KiB, sync_interval: 6ms, sync_bytes: 7KiB, compression: none,
     compression_level: 8, verify: off, on_corruption: refuse}
storage:
  {journal_file_bytes: 9MiB, checkpoint_interval: 10s, checkpoint_bytes: 11MiB, cache_bytes: 12MiB,
   max_backlog_bytes: 13MiB, max_bytes: 14MiB, reaper_interval: 15s, reserve_bytes: 16MiB,
   scrub_rate: 17MiB/s, scrub_interval: 18h}
"""
    )
    assert settings.data_dir == Path("/srv/highway")
    assert settings.listeners == (Listener("a", "::1", 1), Listener("b", "127.0.0.1", 0))
    assert settings.logging == LoggingSettings("json", "warning")
    assert settings.watch_ms == 5000
    assert settings.broker == BrokerSettings(
        entries=(TopicEntry(b"a/+", "one", 1000),),
        unmatched_reject=True,
        max_connections=1,
        max_packet_bytes=2048,
        connect_timeout_s=3.0,
        max_inflight=4,
        max_keep_alive_s=90,
        receive_maximum=6,
        max_subscriptions=5,
        session_expiry_ms=None,
        write_buffer_bytes=7168,
    )
    assert settings.logs == (
        LogSettings(
            "one", Durability.FAST, 2000, 3 * 2**20, 2**20, 4, 5120, 8192, 6, 7168, "none", 8, "off", "refuse", 1000
        ),
    )
    assert settings.storage == StorageSettings(
        9 * 2**20,
        10_000,
        11 * 2**20,
        2 * 2**20,
        12 * 2**20,
        13 * 2**20,
        14 * 2**20,
        15_000,
        16 * 2**20,
        scrub_rate=17 * 2**20,
        scrub_interval_ms=18 * 3_600_000,
    )


def test_defaults_hold_for_entries_that_say_nothing(load):
    settings = load(
        "defaults: {durability: SAFE, retention: unlimited, flush_bytes: 8KiB, delay: 1s}\n"
        "topics:\n  - {topic: a}\n  - {topic: b, durability: FAST, retention: 2d}\n"
    )
    assert settings.logs == (
        LogSettings("a", Durability.SAFE, None, flush_bytes=8192, delay_ms=1000),
        LogSettings("b", Durability.FAST, 2 * DAY_MS, flush_bytes=8192, delay_ms=1000),
        LogSettings("other", retention_ms=DAY_MS, retention_bytes=256 * 2**20, flush_bytes=8192),
    )
    assert [entry.delay_ms for entry in settings.broker.entries] == [1000, 1000, 0]


def test_own_catch_all_replaces_the_built_in_one(load):
    settings = load('topics: [{topic: a, log: x}, {topic: "#", log: rest, durability: SAFE}]\n')
    assert [(entry.topic_filter, entry.log) for entry in settings.broker.entries] == [(b"a", "x"), (b"#", "rest")]
    assert settings.logs[1] == LogSettings("rest", Durability.SAFE)


def test_topics_from_a_file_beside_the_configuration(load, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.yaml").write_text("- {topic: a, log: x}\n")
    assert [log.name for log in load("topics: sub/t.yaml\n").logs] == ["x", "other"]


def test_faults_of_an_included_file_have_its_lines(problems, tmp_path):
    (tmp_path / "t.yaml").write_text("- topic: a\n  log: X\n  retenton: 5d\n- {topic: a, log: y}\n")
    assert problems("topics: t.yaml\nport: 1\n") == [
        f"c.yaml:2:1: port: unknown key; one of {', '.join(sorted(ConfigFile.model_fields))} is wanted",
        "t.yaml:2:8: topics[0].log: 'X' is no name here: up to 64 of a-z, 0-9, '-' and '_', the first a letter or digit",
        "t.yaml:3:3: topics[0].retenton: unknown key; did you mean 'retention'?",
        "t.yaml:4:11: topics[1].topic: the filter 'a' stands twice; the first is at t.yaml:1",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "c.yaml:1:9: topics: t.yaml can't be read: No such file or directory"),
        ("", "t.yaml:1:1: topics: the file is empty, or holds only comments"),
        (
            "topics: []\n",
            "t.yaml:1:1: topics: a list of topic entries is wanted in this file (items that begin with '-')",
        ),
        (
            "- a: [\n",
            "t.yaml:2:1: a '{' or '[' above is never closed, or a value is missing (nothing after this was read)",
        ),
    ],
)
def test_included_file_that_is_none(content, expected, problems, tmp_path):
    if content is not None:
        (tmp_path / "t.yaml").write_text(content)
    assert problems("topics: t.yaml\n") == [expected]


def test_file_that_can_not_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml can't be read: No such file or directory"):
        load_settings(tmp_path / "missing.yaml", environ={})
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_settings(tmp_path, environ={})
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2:7: byte 0xE9 is not UTF-8"):
        load_settings(tmp_path / "latin.yaml", environ={})


@pytest.mark.parametrize("text", ["", "# only this\n", "- a\n", "just text\n", "5\n"])
def test_file_without_keys_is_refused(text, problems):
    assert len(problems(text)) == 1


def test_twelve_ways_to_get_yaml_wrong_all_at_once(problems, tmp_path):
    (tmp_path / "elsewhere.yaml").write_text("- {}\n")
    found = problems(
        """\
limits:
\tmax_packet: 1MiB
  max_inflight: 0644
  max_inflight: 10
  max_conections: 5
  connect_timeout: 12:30
  write_buffer: 65536
insecure: off
listeners:
  open: {bind: 0.0.0.0}
topics:
  - {topic: a/#/b, log: a}
  - topic: #
  - {topic: b, log: b}
  - {topic: b, log: c}
"""
    )
    assert found == [
        "c.yaml:2:1: a tab is used for indentation; YAML allows only spaces there",
        (
            "c.yaml:3:17: limits.max_inflight: '0644' is not a plain whole number; write 644, without quotes, underscores or "
            "zeros in front"
        ),
        "c.yaml:4:3: limits.max_inflight: the key stands twice here; the first is in line 3",
        "c.yaml:5:3: limits.max_conections: unknown key; did you mean 'max_connections'?",
        "c.yaml:6:20: limits.connect_timeout: '12:30' is a time of day or a duration, nobody can tell; write 12h30m",
        "c.yaml:7:17: limits.write_buffer: 65536 has no unit; write 65536B, 65536KiB, 65536MiB or 65536GiB",
        "c.yaml:8:11: insecure: 'off' is neither true nor false; write false",
        (
            "c.yaml:10:16: listeners.open.bind: 0.0.0.0 is open to the network, and anybody may connect without a password; "
            "name a password file (`auth: {password_file: passwd}`, `highway users add`), listen on 127.0.0.1, or say "
            "`insecure: true` at the top of the file if that is meant"
        ),
        (
            "c.yaml:12:13: topics[0].topic: 'a/#/b' is no valid topic filter: a '#' that is not alone in the last level "
            "(3.1.1 [MQTT-4.7.1-2], 5.0 [MQTT-4.7.1-1])"
        ),
        (
            "c.yaml:13:12: topics[1].topic: the value is missing, because '#' starts a comment in YAML; if # is meant, put it "
            'in quotes: "#"'
        ),
        "c.yaml:15:13: topics[3].topic: the filter 'b' stands twice; the first is at c.yaml:14",
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # Field report 61: a harmless-looking word becomes a boolean, an octal number, seconds, or nothing.
        ("topic: #", "the value is missing, because '#' starts a comment in YAML"),
        ("topic: %u/#", "a value can't begin with '%' in YAML; put it in quotes: \"%u/#\""),
        ("topic: *x", "'*' starts a YAML alias, which isn't used here; quote it: \"*x\""),
        ("topic: 5", 'text is wanted, and YAML reads 5 as a number; put it in quotes: "5"'),
        ("topic: true", 'text is wanted, and YAML reads true as a switch; put it in quotes: "true"'),
        ("log: 1.10", "'1.10' is no name here"),
        ("log: 10", 'text is wanted, and YAML reads 10 as a number; put it in quotes: "10"'),
        ("compression_level: 01", "'01' is not a plain whole number; write 1,"),
        ('compression_level: "1"', "'1' is not a plain whole number; write 1,"),
        ("compression_level: true", "a whole number is wanted here, not 'true'"),
        ("compression_level: 23", "23 is too large: at most 22"),
        ("retention: 1:30:00", "nobody can tell; write 1h30m"),
        ("retention: 22:30", "nobody can tell; write 22h30m"),
        ("retention: .inf", "'.inf' is not a duration"),
        ("retention: -1", "-1 is negative"),
        ("retention: 7", "7 has no unit; write 7ms, 7s, 7m, 7h or 7d, or unlimited"),
        ("retention: off", "'off' is not a duration"),
        ("retention: 1ms", "1ms is out of range: 1s to 36500d or unlimited"),
        ("retention_bytes: 1e6", "'1e6' is not a size"),
        ("retention_bytes: 1_000", "1_000 has no unit"),
        ("retention_bytes: 1KiB", "1KiB is out of range: 64KiB to 1024TiB or unlimited"),
        ("flush_interval: unlimited", "'unlimited' is not a duration"),
        ("verify: false", "YAML reads false as a switch; one of cache, direct, off is wanted"),
        ("verify: Off", "'Off' is no value here: one of cache, direct, off is wanted; did you mean 'off'?"),
        ("durability: safe", "one of FAST, BALANCED, SAFE is wanted; did you mean 'SAFE'?"),
        ("durability: [SAFE]", "one of FAST, BALANCED, SAFE is wanted"),
        ("per_topic: yes", "neither true nor false; write true"),
        ("max_logs: 0", "0 is too small: at least 1"),
        ("cleanup: compacted", "one of delete, compact is wanted"),
    ],
)  # fmt: skip
def test_value_that_means_something_else(entry, expected, problems):
    text = f"topics:\n  - {entry}\n" + ("" if entry.startswith("topic:") else "    topic: a/b\n")
    (problem,) = problems(text)
    assert problem.startswith("c.yaml:2:")
    assert expected in problem


@pytest.mark.parametrize(
    ("entry", "field", "value"),
    [
        ("log: no", "name", "no"),
        ("verify: off", "verify", "off"),
        ('verify: "off"', "verify", "off"),
        ("retention: 7d", "retention_ms", 7 * DAY_MS),
        ("retention: unlimited", "retention_ms", None),
        ("retention_bytes: 512MiB", "retention_bytes", 512 * 2**20),
        ("per_topic: true", "per_topic", True),
        ("max_logs: 5", "max_logs", 5),
        ("cleanup: compact", "cleanup", "compact"),
        ("cleanup: compact", "retention_ms", None),
        ("cleanup: compact\n    retention: 7d", "retention_ms", 7 * DAY_MS),
    ],
)
def test_value_that_means_what_it_says(entry, field, value, load):
    assert getattr(load(f"topics:\n  - topic: a/b\n    {entry}\n").logs[0], field) == value


@pytest.mark.parametrize(
    "text",
    [
        "bridges: {}",
        "storage: {engine: jetstream}",
    ],
)
def test_key_of_a_later_version_is_refused_and_not_ignored(text, problems):
    (problem,) = problems(text + "\n")
    assert problem.endswith("not supported by this version yet")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listeners: []\n", "c.yaml:1:12: listeners: a section with keys of its own is wanted here, not '[]'"),
        ("listeners: {}\n", "c.yaml:1:12: listeners: nothing is listed here; one is wanted at least"),
        ("listeners: {Web: {}}\n", "c.yaml:1:13: listeners.Web: 'Web' is no name here"),
        ("listeners: {a: {port: 70000}}\n", "c.yaml:1:23: listeners.a.port: 70000 is too large: at most 65535"),
        ('listeners: {a: {bind: ""}}\n', "c.yaml:1:23: listeners.a.bind: an empty text is no value here"),
        ("limits: x\n", "c.yaml:1:9: limits: a section with keys of its own is wanted here, not 'x'"),
        ("topics: {a: 1}\n", "c.yaml:1:9: topics: a list is wanted here (items that begin with '-'), not a section"),
        ("topics: [a]\n", "c.yaml:1:10: topics[0]: a section with keys of its own is wanted here, not 'a'"),
        ("topics: [{log: a}]\n", "c.yaml:1:10: topics[0].topic: this key is missing, and has no default"),
        ("data_dir: [a]\n", "c.yaml:1:11: data_dir: text is wanted here, not a list"),
        (
            "limits: {max_inflight: [1]}\n",
            "c.yaml:1:24: limits.max_inflight: a whole number is wanted here, not 'a list'",
        ),
        ("insecure: 1\n", "c.yaml:1:11: insecure: true or false is wanted here, not '1'"),
        ("max_packet: 1MiB\n", "c.yaml:1:1: max_packet: unknown key here; 'max_packet' belongs under limits"),
        ("durability: SAFE\n", "c.yaml:1:1: durability: unknown key here; 'durability' belongs under defaults"),
    ],
)
def test_wrong_shape(text, expected, problems):
    (problem,) = problems(text)
    assert problem.startswith(expected)


def test_retention_below_one_segment_is_warned_of(load, tmp_path):
    (warning,) = load("topics:\n  - {topic: a, log: x, retention_bytes: 1MiB}\n").warnings
    assert warning.replace(f"{tmp_path}/", "") == (
        "c.yaml:2:5: topics[0]: retention_bytes (1MiB) is below segment_bytes (64MiB), and only whole segments are "
        "deleted: lower segment_bytes as well"
    )


def test_environment_wins_over_the_file(load):
    settings = load(
        "listeners: {local: {port: 1}}\ntopics: [{topic: a, retention: 1d}]\n",
        {
            "HIGHWAY__LISTENERS__LOCAL__PORT": "1884",
            "HIGHWAY__LISTENERS__MORE__PORT": "1885",
            "HIGHWAY__LIMITS__MAX_PACKET": "2MiB",
            "HIGHWAY__DATA_DIR": "/srv/#1 %x",
            "HIGHWAY__TOPICS__0__RETENTION": "2d",
            "HIGHWAY_PASSWORD": "not ours",
            "OTHER__LIMITS": "1",
        },
    )
    assert [listener.port for listener in settings.listeners] == [1884, 1885]
    assert settings.broker.max_packet_bytes == 2 * 2**20
    assert settings.data_dir == Path("/srv/#1 %x")
    assert settings.logs[0].retention_ms == 2 * DAY_MS


def test_environment_replaces_a_section_as_a_whole(load):
    settings = load("topics: [{topic: a, log: x}]\n", {"HIGHWAY__TOPICS": "[{topic: b, log: y}, {topic: c}]"})
    assert [log.name for log in settings.logs] == ["y", "c", "other"]


def test_environment_reaches_into_an_included_file_and_can_name_another(load, tmp_path):
    (tmp_path / "t.yaml").write_text("- {topic: a, log: x, retention: 5}\n")
    (tmp_path / "u.yaml").write_text("- {topic: b, log: y}\n")
    assert load("topics: t.yaml\n", {"HIGHWAY__TOPICS__0__RETENTION": "2d"}).logs[0].retention_ms == 2 * DAY_MS
    for text in ("topics: t.yaml\n", "topics: missing.yaml\n", "topics: 5\n"):
        assert load(text, {"HIGHWAY__TOPICS": "u.yaml"}).logs[0].name == "y"


def test_environment_mends_what_the_file_has_wrong(load):
    assert load("limits: {max_inflight: }\n", {"HIGHWAY__LIMITS__MAX_INFLIGHT": "7"}).broker.max_inflight == 7


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HIGHWAY__LIMITS__MAX_PAKET", "1MiB", "limits.max_paket: unknown key; did you mean 'max_packet'?"),
        ("HIGHWAY__HTTP__PORTS", "1", "http.ports: unknown key; did you mean 'port'?"),
        ("HIGHWAY__LIMITS__MAX_PACKET", "1000", "limits.max_packet: 1000 has no unit"),
        ("HIGHWAY__LIMITS__MAX_PACKET", "", "limits.max_packet: the value is missing"),
        ("HIGHWAY__INSECURE", "yes", "insecure: 'yes' is neither true nor false; write true"),
        ("HIGHWAY__TOPICS__1__LOG", "x", "topics.1: a number from 0 to 0 is wanted instead of 1"),
        ("HIGHWAY__TOPICS__X__LOG", "x", "topics.x: a number from 0 to 0 is wanted instead of X"),
        ("HIGHWAY__UNMATCHED__X", "1", "unmatched.x: unmatched is no section, so that it has no such key"),
        ("HIGHWAY__LIMITS____X", "1", "the key path has an empty part"),
        ("HIGHWAY__", "1", "the key path has an empty part"),
        ("HIGHWAY__TOPICS", "[{topic: a/#/b}]", "topics[0].topic: 'a/#/b' is no valid topic filter"),
        ("HIGHWAY__TOPICS", "[{topic: #}]", "starts a comment in YAML"),
        ("HIGHWAY__LISTENERS__LOCAL__BIND", "0.0.0.0", "listeners.local.bind: 0.0.0.0 is open to the network"),
    ],
)
def test_wrong_variable_is_named(name, value, expected, problems):
    (problem,) = problems("unmatched: store\ntopics: [{topic: a}]\n", {name: value})
    assert problem.startswith(f"environment {name}")
    assert expected in problem


def test_command_line_wins_over_everything(load, tmp_path):
    settings = load(
        "data_dir: a\nlisteners: {x: {port: 5}, y: {port: }}\n",
        {"HIGHWAY__LISTENERS__X__PORT": "6", "HIGHWAY__DATA_DIR": "b"},
        data_dir=tmp_path / "c",
        listen="127.0.0.1:0",
    )
    assert settings.listeners == (Listener("local", "127.0.0.1", 0),)
    assert settings.data_dir == tmp_path / "c"


@pytest.mark.parametrize(
    ("listen", "expected"), [("nonsense", "HOST:PORT is wanted"), ("0.0.0.0:1883", "open to the network")]
)
def test_wrong_listen_option(listen, expected, problems):
    (problem,) = problems("unmatched: store\n", listen=listen)
    assert problem.startswith("--listen: ")
    assert expected in problem


def test_shipped_files_are_valid_and_say_the_defaults():
    settings = load_settings(ROOT / "config" / "highway.yaml", environ={})
    built_in = load_settings(environ={})
    assert settings.warnings == ()
    assert (settings.listeners, settings.logs, settings.broker, settings.storage) == (
        built_in.listeners,
        built_in.logs,
        built_in.broker,
        built_in.storage,
    )


def test_schema_file_is_in_step_with_the_models():
    written = (ROOT / "config" / "highway.schema.json").read_text()
    assert json.loads(written) == json_schema(), "run: highway config schema > config/highway.schema.json"
    written = (ROOT / "config" / "topics.schema.json").read_text()
    assert json.loads(written) == topics_json_schema(), (
        "run: highway config schema --topics > config/topics.schema.json"
    )


@pytest.mark.parametrize("name", ["highway", "topics"])
def test_shipped_files_name_their_schema_for_editors(name):
    first = shipped_text(f"{name}.yaml").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={name}.schema.json"
    assert (ROOT / "config" / f"{name}.schema.json").exists()


def test_schema_of_the_topic_file_takes_the_shipped_one_and_refuses_mistakes():
    resource = referencing.Resource.from_contents(json_schema())
    registry = referencing.Registry().with_resource("highway.schema.json", resource)
    validator = jsonschema.Draft202012Validator(topics_json_schema(), registry=registry)
    entries = yaml.safe_load(shipped_text("topics.yaml"))
    assert list(validator.iter_errors(entries)) == []
    assert list(validator.iter_errors([{**entries[0], "retenton": "7d"}])) != []
    assert list(validator.iter_errors([{**entries[0], "retention": 7}])) != []


def test_schema_takes_the_shipped_file_and_refuses_mistakes():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    tree = yaml.safe_load(shipped_text("highway.yaml"))
    assert list(validator.iter_errors(tree)) == []
    assert list(validator.iter_errors({**tree, "topics": yaml.safe_load(shipped_text("topics.yaml"))})) == []
    for wrong in ({"nope": 1}, {"limits": {"max_packet": 5}}, {"topics": [{"log": "x"}]}, {"unmatched": "drop"}):
        assert list(validator.iter_errors({**tree, **wrong})) != []


@pytest.mark.parametrize("listen", [None, "0.0.0.0:1883"])
def test_shown_configuration_reads_back_the_same(listen, tmp_path):
    environ = {"HIGHWAY__INSECURE": "true", "HIGHWAY__LIMITS__SESSION_EXPIRY": "unlimited"}
    settings = load_settings(environ=environ, overrides=Overrides(tmp_path / "data", listen))
    path = tmp_path / "shown.yaml"
    path.write_text(to_yaml(settings))
    assert load_settings(path, environ={}) == settings
    path.write_text(json.dumps(to_tree(settings), indent=1))
    assert load_settings(path, environ={}) == settings


SHIPPED = shipped_text("highway.yaml").replace("topics: topics.yaml", "topics:\n" + shipped_text("topics.yaml"))
# Without comments, so that a change nearly always hits something that means something.
BARE = "\n".join(line for line in SHIPPED.splitlines() if line.strip() and not line.lstrip().startswith("#")) + "\n"


@settings(deadline=None)  # a busy machine is no fault of the loader's
@given(data=st.data())
def test_damaged_file_is_taken_or_refused_and_nothing_else(data, tmp_path_factory):
    text = BARE
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.text(alphabet="\t\n #%&*-:@[]{}0aé\x00", max_size=4)) + text[at + cut :]
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_text(text)
    problems = []
    try:
        load_settings(path, environ={})
    except ConfigError as error:
        problems = error.problems or ["an error without a problem"]
    assert [problem for problem in problems if not problem.startswith(f"{path}:")] == []


def test_a_file_of_topic_entries_is_no_configuration_and_says_which_is(tmp_path):
    path = tmp_path / "topics.yaml"
    path.write_text("- topic: a/#\n  log: a\n")
    with pytest.raises(ConfigError, match="the file to check is the one that names this list: `topics: FILE`"):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data_dir: d\nlimits: {max_packet: 100}\ntopics: [{topic: a/#/b}]\n", "d"),
        ("topics: nowhere.yaml\n", "highway-data"),
        ("data_dir: 7\n", None),
        ("data_dirr: d\n", None),
        ("data_dir: a\ndata_dir: b\n", None),
        ("listeners: {\ndata_dir: d\n", None),
    ],
)
def test_the_data_directory_of_a_wrong_configuration(tmp_path, text, expected):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    if expected is None:
        with pytest.raises(ConfigError):
            find_data_dir(path, environ={})
    else:
        assert find_data_dir(path, environ={}) == tmp_path / expected
        assert find_data_dir(path, environ={"HIGHWAY__DATA_DIR": "/e"}) == Path("/e")
