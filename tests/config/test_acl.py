"""`auth: acl:` from the file to the rules that the broker goes by."""

from __future__ import annotations

import re

import pytest
import yaml

from highway.broker.authorisation import AclRule, Right
from highway.config.loading import load_settings, shipped_text
from highway.config.rendering import to_yaml
from highway.errors import ConfigError

RULES = """\
auth:
  anonymous: true
  acl:
    - {allow: publish, topic: "highway/%c/#"}
    - {deny: [subscribe, replay], topic: "highway/+/secret", client: probe}
    - {allow: [subscribe, fetch], user: dashboard, topic: "$SYS/#"}
"""


@pytest.fixture
def load(tmp_path):
    def load(text):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load_settings(path, environ={})

    return load


def rules(*lines):
    return "auth:\n  anonymous: true\n  acl:\n" + "".join(f"    - {line}\n" for line in lines)


def test_rules_as_the_broker_goes_by_them(load):
    assert load(RULES).broker.acl == (
        AclRule(True, frozenset({Right.PUBLISH}), b"highway/%c/#"),
        AclRule(False, frozenset({Right.SUBSCRIBE, Right.REPLAY}), b"highway/+/secret", client="probe"),
        AclRule(True, frozenset({Right.SUBSCRIBE, Right.FETCH}), b"$SYS/#", user="dashboard"),
    )


def test_no_rules_and_an_empty_list_are_two_things(load):
    assert load("auth: {anonymous: true}\n").broker.acl is None
    settings = load("auth: {anonymous: true, acl: []}\n")
    assert settings.broker.acl == ()
    assert any("nobody may do anything" in warning for warning in settings.warnings)


def test_what_becomes_of_a_denied_publish(load):
    assert not load("auth: {anonymous: true}\n").broker.acl_denied_closes
    assert load("auth: {anonymous: true, acl_denied: close}\n").broker.acl_denied_closes


def test_user_names_are_trusted_and_the_operator_is_told(load):
    warnings = load(rules("{allow: publish, topic: a, user: u}", "{allow: publish, topic: a/%u}", RULE)).warnings
    assert [re.findall(r"acl\[\d\]", warning) for warning in warnings] == [["acl[0]"], ["acl[1]"]]
    assert all("nothing checks it" in warning for warning in warnings)


RULE = "{allow: publish, topic: a/%c}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acl:", "c.yaml:3:7: auth.acl: the value is missing"),
        ("acl: {}", "auth.acl: a list is wanted here (items that begin with '-'), not a section"),
        ("acls: []", "c.yaml:3:3: auth.acls: unknown key; did you mean 'acl'?"),
        ("acl_denied: no", "auth.acl_denied: 'no' is no value here; one of close, drop is wanted"),
        ("acl: [a]", "auth.acl[0]: a section with keys of its own is wanted here, not 'a'"),
    ],
)
def test_mistakes_in_the_section(text, expected, load):
    with pytest.raises(ConfigError) as caught:
        load(f"auth:\n  anonymous: true\n  {text}\n")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{topic: a}", "exactly one of `allow` and `deny` is wanted"),
        ("{allow: publish, deny: publish, topic: a}", "exactly one of `allow` and `deny` is wanted"),
        ("{allow: publsh, topic: a}", "'publsh' is no right; did you mean 'publish'?"),
        ("{allow: [publish, 1], topic: a}", "1 is no right"),
        ("{allow: , topic: a}", "the value is missing"),
        ("{allow: [], topic: a}", "nothing is listed here"),
        ("{allow: publish}", "this key is missing, and has no default"),
        ("{allow: publish, topic: }", "the value is missing"),
        ('{allow: publish, topic: ""}', "an empty text is no value here"),
        ('{allow: publish, topic: "ie#"}', "'ie#' is no valid topic filter: a '#' that is not alone in the last level"),
        ("{allow: publish, topic: dev-%c/x}", "%c and %u stand for a whole level; 'dev-%c' has more in it"),
        ("{allow: replay, topic: $replay/7d/a}", "rights are about topics; write what follows $replay/"),
        ("{allow: subscribe, topic: $share/g/a}", "rights are about topics; write what follows $share/"),
        ("{allow: publish, topic: a, user: }", "the value is missing"),
        ("{allow: publish, topic: a, client: 12}", 'YAML reads 12 as a number; put it in quotes: "12"'),
        ("{allow: publish, topic: a, users: b}", "unknown key; did you mean 'user'?"),
    ],
)
def test_mistakes_in_a_rule(rule, expected, load):
    with pytest.raises(ConfigError) as caught:
        load(rules(RULE, rule))
    assert expected in str(caught.value)
    assert "auth.acl[1]" in str(caught.value)
    assert re.match(r"[^:]+c\.yaml:5:\d+: ", str(caught.value).splitlines()[-1])


def test_a_topic_that_yaml_takes_for_a_comment(load):
    with pytest.raises(ConfigError, match="quotes"):
        load("auth:\n  anonymous: true\n  acl:\n    - allow: publish\n      topic: #\n")


def test_written_out_and_read_again(load):
    settings = load(RULES + "  acl_denied: close\n")
    again = load(to_yaml(settings)).broker
    assert (again.acl, again.acl_denied_closes) == (settings.broker.acl, True)
    assert "acl" not in yaml.safe_load(to_yaml(load("auth: {anonymous: true}\n")))["auth"]


def test_the_examples_of_the_shipped_file_are_valid(tmp_path):
    text = shipped_text("highway.yaml").replace("  # acl:", "  acl:").replace("  #   - {", "    - {")
    (tmp_path / "topics.yaml").write_text("[]")
    path = tmp_path / "highway.yaml"
    path.write_text(text)
    acl = load_settings(path, environ={}).broker.acl
    assert acl is not None
    assert len(acl) == 4
