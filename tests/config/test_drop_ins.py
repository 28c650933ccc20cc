"""conf.d/ and the origins of values: who has the last word, and where it stands."""

from __future__ import annotations

import pytest

from highway.config.loading import Overrides, load_document, load_settings
from highway.config.origins import annotated_yaml, origins
from highway.config.problems import render_path
from highway.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def write(main, **files):
        (tmp_path / "conf.d").mkdir(exist_ok=True)
        (tmp_path / "c.yaml").write_text(main)
        for name, text in files.items():
            (tmp_path / "conf.d" / f"{name}.yaml").write_text(text)
        return tmp_path / "c.yaml"

    return write


def problems_of(path):
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ={})
    return [line.replace(f"{path.parent}/", "") for line in caught.value.problems]


def test_sections_are_joined_lists_grow_and_the_last_value_counts(write):
    path = write(
        "limits: {max_inflight: 5, max_connections: 9}\ntopics: [{topic: a, log: x}]\n",
        b="limits: {max_inflight: 7}\ntopics: [{topic: c, log: z}]\n",
        a="limits: {max_inflight: 6}\ntopics: [{topic: b, log: y}]\nlisteners: {web: {port: 5}}\n",
    )
    settings = load_settings(path, environ={})
    assert (settings.broker.max_inflight, settings.broker.max_connections) == (7, 9)
    assert [log.name for log in settings.logs] == ["x", "y", "z", "other"]
    assert [listener.name for listener in settings.listeners] == ["web"]
    names = [file.name for file in settings.files]
    assert names == ["c.yaml", "conf.d", "a.yaml", "b.yaml"]


def test_topics_of_a_drop_in_may_stand_in_a_file_of_their_own(write, tmp_path):
    (tmp_path / "t.yaml").write_text("- {topic: b, log: y, retenton: 7d}\n")
    path = write("topics: [{topic: a, log: x}]\n", more="topics: t.yaml\n")
    assert problems_of(path) == ["t.yaml:1:22: topics[1].retenton: unknown key; did you mean 'retention'?"]


def test_faults_of_all_files_are_told_at_their_own_places(write):
    path = write(
        "topics: [{topic: a, log: x}]\nnope: 1\n",
        one="topics:\n  - {topic: a, log: y}\n  - {topic: b/#/c}\n",
        two="limits:\n\tmax_inflight: 5\n",
        three="- a list\n",
    )
    found = problems_of(path)
    assert found[0].startswith("c.yaml:2:1: nope: unknown key")
    assert [line.partition(": ")[0] for line in found[1:]] == [
        "conf.d/one.yaml:2:13",
        "conf.d/one.yaml:3:13",
        "conf.d/three.yaml:1:1",
        "conf.d/two.yaml:2:1",
    ]
    assert "the filter 'a' stands twice; the first is at c.yaml:1" in found[1]


def test_what_editors_and_packages_leave_there_does_not_count(write, tmp_path):
    path = write("unmatched: store\n")
    for name in ("x.yaml~", "x.yaml.dpkg-old", ".x.yaml", "README"):
        (tmp_path / "conf.d" / name).write_text("nope: 1\n")
    assert load_settings(path, environ={}).warnings == ()


def test_every_value_has_its_origin(write):
    path = write(
        "limits: {max_inflight: 5}\ndefaults: {retention: 3d}\ntopics: [{topic: a, log: x}]\n",
        over="logging: {level: debug}\n",
    )
    environ = {"HIGHWAY__LISTENERS__LOCAL__PORT": "5"}
    settings, document = load_document(path, environ=environ, overrides=Overrides(http="127.0.0.1:7"))
    found = {render_path(key): origin for key, _, origin in origins(settings, document)}
    folder = path.parent
    assert found["limits.max_inflight"] == f"{path}:1:10"
    assert found["limits.max_connections"] == "default"
    assert found["logging.level"] == f"{folder}/conf.d/over.yaml:1:11"
    assert found["logging.format"] == "default"
    assert found["listeners.local.port"] == "environment HIGHWAY__LISTENERS__LOCAL__PORT"
    assert found["http.port"] == "--http"
    assert found["topics[0].log"] == f"{path}:3:21"
    assert found["topics[0].retention"] == f"{path}:2:12"
    assert found["topics[0].durability"] == "default"
    assert found["topics[1].log"].startswith("built in")


@pytest.mark.parametrize("has_file", [True, False])
def test_the_annotated_configuration_is_one_that_says_the_same(write, tmp_path, has_file):
    path = write(
        "auth: {anonymous: true, acl: [{allow: [publish, replay], topic: 'a/#'}, {deny: fetch, topic: b}]}\n"
        "topics: [{topic: a, log: x}, {topic: 'é/#', log: y}]\nlisteners: {a: {}, b: {port: 5, websocket: /m}}\n"
    )
    settings, document = load_document(path if has_file else None, environ={})
    text = annotated_yaml(settings, document)
    assert all("  # " in line for line in text.splitlines() if not line.endswith(":"))
    written = tmp_path / "out" / "shown.yaml"
    written.parent.mkdir()
    written.write_text(text)
    again = load_settings(written, environ={})
    assert again.data_dir == settings.data_dir.absolute()
    assert (again.logs, again.listeners, again.http) == (settings.logs, settings.listeners, settings.http)
