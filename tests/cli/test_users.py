"""`highway users` and `highway acl`: files of mosquitto's kind, changed, asked and read."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from highway.config.passwords import load_passwords, verify_password


@pytest.fixture
def type_in(monkeypatch):
    """What comes on standard input, which is no terminal."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_user_comes_changes_and_goes(highway, type_in, tmp_path):
    path = tmp_path / "passwd"
    type_in("wonderland\n")
    assert highway("users", "add", "alice", "--file", path).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert verify_password(load_passwords(path).hashes["alice"], b"wonderland")
    assert load_passwords(path).hashes["alice"].startswith("$argon2id$")
    type_in("x\n")
    assert highway("users", "add", "alice", "--file", path).code == 6
    type_in("looking glass\n")
    assert highway("users", "passwd", "alice", "--file", path).code == 0
    assert verify_password(load_passwords(path).hashes["alice"], b"looking glass")
    assert highway("users", "list", "--file", path).out.split() == ["alice", "argon2id"]
    assert json.loads(highway("users", "list", "--file", path, "--json").out) == {"user": "alice", "hash": "argon2id"}
    assert highway("users", "rm", "alice", "--file", path).code == 0
    assert highway("users", "rm", "alice", "--file", path).code == 3
    assert highway("users", "passwd", "alice", "--file", path).code == 3
    assert path.read_text() == ""
    assert [item.name for item in tmp_path.iterdir()] == ["passwd"]


def test_lines_of_others_stay_as_they_are(highway, type_in, tmp_path):
    path = tmp_path / "passwd"
    other = "bob:$6$lpCyupBaGmoOxQj7$h5hddGSLqyWy2aufU3CgocUBbrRq6g0yLqpup/sj5+15Vq6Unym741cAQCQaG9GT77WRePbXB982b/ngB1O+kQ=="
    path.write_text(f"# ours\n{other}\n")
    path.chmod(0o600)
    type_in("x\n")
    assert highway("users", "add", "alice", "--file", path).code == 0
    assert path.read_text().startswith(f"# ours\n{other}\nalice:$argon2id$")


def test_the_file_that_a_configuration_names(highway, type_in, tmp_path):
    (tmp_path / "c.yaml").write_text("auth: {password_file: users}\n")
    type_in("x\n")
    assert highway("users", "add", "alice", "-c", "c.yaml").code == 0
    assert list(load_passwords(tmp_path / "users").hashes) == ["alice"]
    assert highway("config", "check", "c.yaml").code == 0
    (tmp_path / "d.yaml").write_text("auth: {anonymous: true}\n")
    assert highway("users", "list", "-c", "d.yaml").code == 2
    assert highway("users", "list").code == 2


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a\n", "a\tb"])
def test_names_that_would_break_the_file(highway, type_in, tmp_path, name):
    type_in("x\n")
    assert highway("users", "add", name, "--file", tmp_path / "passwd").code == 2
    assert not (tmp_path / "passwd").exists()


def test_an_empty_password_is_none(highway, type_in, tmp_path):
    type_in("\n")
    assert highway("users", "add", "alice", "--file", tmp_path / "passwd").code == 2


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("alice", "`user:hash` is wanted"),
        ("alice:secret", "no hash of mosquitto's"),
        ("alice:$6$abc", "parts"),
        ("alice:$7$0$c2FsdA==$aGFzaA==", "iterations"),
        ("alice:$7$101$c2FsdA==$aGFzaA==", "cut off"),
        ("alice:$6$%%%$aGFzaA==", "base64"),
        ("alice:$argon2id$v=19$m=99999999,t=1,p=1$c2FsdHNhbHQ$aGFzaA", "out of range"),
    ],
)
def test_a_broken_password_file_is_a_fault_of_the_configuration(highway, tmp_path, line, fault):
    path = tmp_path / "passwd"
    path.write_text(f"# users\n{line}\n")
    path.chmod(0o600)
    (tmp_path / "c.yaml").write_text("auth: {password_file: passwd}\n")
    ran = highway("config", "check", "c.yaml")
    assert ran.code == 2
    assert ran.err.startswith("passwd:2:1: auth.password_file:")
    assert fault in ran.err
    assert "secret" not in ran.err


def test_what_everybody_may_read_keeps_no_secret(highway, tmp_path):
    (tmp_path / "passwd").write_text("")
    (tmp_path / "passwd").chmod(0o644)
    (tmp_path / "c.yaml").write_text("auth: {password_file: passwd}\n")
    ran = highway("config", "check", "c.yaml")
    assert ran.code == 2
    assert "everybody on this machine may read it; run: chmod o-rwx passwd" in ran.err


def test_secrets_of_plugins_are_not_shown(highway, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("hunter2\n")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "other").write_text("hunter22")
    (tmp_path / "credentials" / "other").chmod(0o400)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    (tmp_path / "c.yaml").write_text(
        "auth:\n  plugins:\n    a.B: {secret_key: {file: key}, token: {file: other}, word: x}\n"
        "    c.D: {password: hunter2, connection: 'pg://u:hunter2@host/db'}\n"
    )
    shown = highway("config", "show", "c.yaml")
    assert shown.code == 0
    assert "hunter" not in shown.out
    assert str(tmp_path / "key") in shown.out
    (tmp_path / "key").chmod(0o644)
    assert "chmod o-rwx key" in highway("config", "check", "c.yaml").err


RULES = """\
auth:
  anonymous: true
  acl:
    - {deny: [subscribe, fetch], topic: highway/+/secret}
    - {allow: publish, topic: highway/%c/#}
    - {allow: [subscribe, replay], user: dashboard, topic: highway/#}
"""


@pytest.mark.parametrize(
    ("words", "code", "rule"),
    [
        (["dashboard", "subscribe", "highway/#"], 0, "c.yaml:6"),
        (["dashboard", "subscribe", "highway/A1/secret"], 6, "c.yaml:4"),
        (["alice", "publish", "highway/A1/x", "-i", "A1"], 0, "c.yaml:5"),
        (["alice", "publish", "highway/A1/x", "-i", "A2"], 6, None),
        (["alice", "replay", "highway/A1/x"], 6, None),
    ],
)
def test_acl_test_names_the_rule(highway, tmp_path, words, code, rule):
    (tmp_path / "c.yaml").write_text(RULES)
    ran = highway("acl", "test", "-c", "c.yaml", *words)
    assert ran.code == code
    assert ran.out.startswith("denied: " if code else "allowed: ")
    assert (rule or "no rule matches") in ran.out
    told = json.loads(highway("acl", "test", "-c", "c.yaml", *words, "--json").out)
    assert (told["allowed"], told["rule"]) == (not code, rule)


def test_acl_test_without_rules_and_with_nonsense(highway, tmp_path):
    (tmp_path / "c.yaml").write_text("auth: {anonymous: true}\n")
    assert highway("acl", "test", "-c", "c.yaml", "u", "publish", "a").out == "allowed: there are no rules\n"
    assert highway("acl", "test", "-c", "c.yaml", "u", "read", "a").code == 2
    assert highway("acl", "test", "-c", "c.yaml", "u", "subscribe", "a/#/b").code == 2


def test_acl_import(highway, tmp_path):
    (tmp_path / "acl").write_text(
        "# mosquitto's\n"
        "topic read $SYS/#\n"
        "user alice\n"
        "topic readwrite alice/#\n"
        "topic deny alice/secret\n"
        "topic plain/with spaces\n"
        "topic write %u/x\n"
        "pattern write dev/%c/up\n"
        "pattern read dev/x%c/down\n"
        "topics a\n"
    )
    ran = highway("acl", "import", "acl")
    assert ran.code == 0
    (tmp_path / "c.yaml").write_text(ran.out.replace("auth:\n", "auth:\n  anonymous: true\n"))
    assert highway("config", "check", "c.yaml").code == 0
    assert ran.out.count("\n    - ") == 4
    assert ran.out.index("alice/secret") < ran.out.index("alice/#")
    assert [line.split(":")[1] for line in ran.err.splitlines()] == ["2", "7", "9", "10"]
    for user, topic, client, code in (
        ("alice", "alice/a", "", 0),
        ("alice", "alice/secret", "", 6),
        ("bob", "alice/a", "", 6),
        ("bob", "dev/b1/up", "b1", 0),
        ("bob", "dev/b2/up", "b1", 6),
    ):
        assert highway("acl", "test", "-c", "c.yaml", user, "publish", topic, "-i", client).code == code
    assert highway("acl", "import", "nothing").code == 1


def test_no_password_is_an_argument():
    shown = subprocess.run(
        [sys.executable, "-m", "highway", "users", "add", "--help"], capture_output=True, text=True, check=True
    )
    assert "--password" not in shown.stdout


def test_an_unknown_user_costs_what_the_dearest_of_the_file_costs(highway, type_in, tmp_path):
    path = tmp_path / "passwd"
    weak = "bob:$6$lpCyupBaGmoOxQj7$h5hddGSLqyWy2aufU3CgocUBbrRq6g0yLqpup/sj5+15Vq6Unym741cAQCQaG9GT77WRePbXB982b/ngB1O+kQ=="
    path.write_text(f"{weak}\n")
    path.chmod(0o600)
    assert load_passwords(path).decoy().startswith("$6$")
    type_in("x\n")
    highway("users", "add", "alice", "--file", path)
    assert load_passwords(path).decoy() == load_passwords(path).hashes["alice"]
