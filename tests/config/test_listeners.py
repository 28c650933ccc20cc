"""Who can reach the broker, and who may come in."""

from __future__ import annotations

import pytest

from highway.config.listeners import is_loopback, parse_address
from highway.config.loading import Overrides, load_settings
from highway.config.rendering import to_yaml
from highway.errors import ConfigError

OPEN = "is open to the network, and anybody may connect without a password"


def problems(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    try:
        load_settings(path, environ={})
    except ConfigError as error:
        return [line.replace(str(path), "c.yaml") for line in error.problems]
    return []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback(host, tmp_path):
    assert is_loopback(host)
    assert problems(tmp_path, f'listeners: {{l: {{bind: "{host}"}}}}\n') == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker.example", "off", "127.0.0.1.example"])
def test_open_listener_without_passwords_is_refused_unless_meant(host, tmp_path):
    text = f'listeners: {{l: {{bind: "{host}"}}}}\n'
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("c.yaml:1:23: listeners.l.bind: ")
    assert OPEN in problem
    assert problems(tmp_path, text + "insecure: true\n") == []
    assert len(problems(tmp_path, text + "insecure: false\n")) == 1
    assert len(problems(tmp_path, text + 'insecure: "true"\n')) == 2


@pytest.mark.parametrize("text", ["auth: {}\n", "auth: {anonymous: false}\n"])
def test_auth_without_anonymous_means_no_and_there_is_no_other_way_in_yet(text, tmp_path):
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("c.yaml:1:")
    assert "nobody could connect" in problem


@pytest.mark.parametrize(
    "key", ["acls: []", "alow_anonymous: true", "anonymous: off", 'anonymous: "false"', "anonymous:"]
)
def test_mistake_in_the_security_section_never_leaves_the_door_open(key, tmp_path):
    (problem,) = problems(tmp_path, f"auth:\n  {key}\n")
    assert problem.startswith("c.yaml:2:")


def test_two_listeners_on_one_address(tmp_path):
    text = "listeners:\n  a: {port: 1884}\n  b: {bind: 127.0.0.1, port: 1884}\n  c: {bind: '::1', port: 1884}\n"
    assert problems(tmp_path, text) == [
        "c.yaml:3:3: listeners.b: 127.0.0.1 port 1884 is already taken by the listener at c.yaml:2:3"
    ]
    assert problems(tmp_path, "listeners: {a: {port: 0}, b: {port: 0}}\n") == []


@pytest.mark.parametrize(
    ("one", "other", "taken"),
    [
        ("::1", "0:0:0::1", True),
        ("localhost", "LOCALHOST", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("192.0.2.1", "0.0.0.0", True),
        ("::", "::1", True),
        ("::", "0.0.0.0", False),
        ("::", "192.0.2.1", False),
        ("0.0.0.0", "2001:db8::1", False),
        ("127.0.0.1", "127.0.0.2", False),
    ],
)
def test_addresses_that_meet_on_one_port(tmp_path, one, other, taken):
    found = problems(tmp_path, f'insecure: true\nlisteners:\n  a: {{bind: "{one}"}}\n  b: {{bind: "{other}"}}\n')
    expected = f"c.yaml:4:3: listeners.b: {other} port 1883 is already taken by the listener at c.yaml:3:3"
    assert found == ([expected] if taken else [])


def test_listener_that_wants_certificates_may_be_open(tmp_path):
    tls = "certfile: gone.pem, keyfile: gone.key, cafile: gone.ca"
    text = f"listeners: {{l: {{bind: 0.0.0.0, tls: {{{tls}, require_certificate: true}}}}}}\n"
    assert not any(OPEN in line for line in problems(tmp_path, text))
    text = text.replace("require_certificate: true", "require_certificate: false")
    assert any(OPEN in line for line in problems(tmp_path, text))


@pytest.mark.parametrize("path", ["/", "/mqtt", "/a/b%20c", "/mqtt;v=5"])
def test_path_of_a_websocket(tmp_path, path):
    (tmp_path / "c.yaml").write_text(f'listeners: {{l: {{websocket: "{path}"}}}}\n')
    assert load_settings(tmp_path / "c.yaml", environ={}).listeners[0].websocket == path


@pytest.mark.parametrize("path", ["mqtt", "/a?b", "/a#b", "/a b", "/ä", "ws://host/mqtt", "/a\\b"])
def test_path_that_no_websocket_can_have(tmp_path, path):
    (problem,) = problems(tmp_path, f"listeners: {{l: {{websocket: '{path}'}}}}\n")
    assert problem.startswith("c.yaml:1:28: listeners.l.websocket: ")
    assert "is no path: it begins with '/'" in problem
    (problem,) = problems(tmp_path, "listeners: {l: {websocket: true}}\n")
    assert "text is wanted" in problem


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1883", ("127.0.0.1", 1883)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:1884", ("::1", 1884)),
        ("::1:1884", None),
        ("1883", None),
        (":1883", None),
        ("host:", None),
        ("host:65536", None),
        ("host:-1", None),
        ("host:१", None),
    ],
)
def test_address_of_the_command_line(text, address):
    assert parse_address(text) == address


def http_of(tmp_path, text, environ=None, **overrides):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load_settings(path, environ=environ or {}, overrides=Overrides(**overrides)).http


def test_http_is_on_without_a_file_and_off_where_a_file_does_not_say_so(tmp_path):
    assert load_settings(environ={}).http == ("127.0.0.1", 8080)
    assert load_settings(environ={}, overrides=Overrides(http="")).http is None
    assert http_of(tmp_path, "topics: []\n") is None
    assert http_of(tmp_path, "http: {}\n") == ("127.0.0.1", 8080)
    assert http_of(tmp_path, "http: {bind: '::1', port: 0}\n") == ("::1", 0)
    assert http_of(tmp_path, "topics: []\n", {"HIGHWAY__HTTP__PORT": "81"}) == ("127.0.0.1", 81)
    assert http_of(tmp_path, "topics: []\n", http="[::1]:82") == ("::1", 82)
    assert http_of(tmp_path, "http: {port: 83}\n", http="") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http: {bind: 0.0.0.0}\n", "c.yaml:1:14: http.bind: 0.0.0.0 is open to the network, and the HTTP API asks"),
        ("insecure: true\nhttp: {bind: '::'}\n", "c.yaml:2:14: http.bind: :: is open to the network"),
        ("http: {port: 1883}\nlisteners: {a: {}}\n", "c.yaml:1:1: http: 127.0.0.1 port 1883 is already taken by"),
        ("http: {prot: 1}\n", "c.yaml:1:8: http.prot: unknown key; did you mean 'port'?"),
        ("http: {port: x}\n", "c.yaml:1:14: http.port: a whole number is wanted here, not 'x'"),
        ("http: 8080\n", "c.yaml:1:7: http: a section with keys of its own is wanted here, not '8080'"),
    ],
)
def test_http_that_can_not_be_served(text, expected, tmp_path):
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(expected)


def test_http_beyond_this_machine_wants_a_token_in_a_file_that_not_everybody_reads(tmp_path):
    text = "http: {bind: 0.0.0.0, token: {file: http-token}}\n"
    secret = tmp_path / "http-token"
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("c.yaml:1:37: http.token.file: ")
    assert "can't be read: No such file" in problem
    secret.write_text("short\n")
    secret.chmod(0o600)
    (problem,) = problems(tmp_path, text)
    assert "a token has 16 or more letters" in problem
    secret.write_text("0123456789abcdef\n")
    settings = load_settings(tmp_path / "c.yaml", environ={})
    assert settings.http == ("0.0.0.0", 8080)
    assert settings.http_token is not None
    assert settings.http_token.matches("0123456789abcdef")
    assert "0123456789abcdef" not in to_yaml(settings)
    secret.chmod(0o644)
    (problem,) = problems(tmp_path, text)
    assert "everybody on this machine may read it" in problem


def test_http_beyond_this_machine_from_the_command_line_is_an_error_too():
    with pytest.raises(
        ConfigError, match=r"--http: http.bind: 192\.0\.2\.1 is open .* name the file of a bearer token"
    ):
        load_settings(environ={}, overrides=Overrides(http="192.0.2.1:80"))
    with pytest.raises(ConfigError, match="--http: HOST:PORT is wanted"):
        load_settings(environ={}, overrides=Overrides(http="80"))
