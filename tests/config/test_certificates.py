"""Certificates as the configuration sees them: what can't be served never takes effect, and is said at its line."""

from __future__ import annotations

import datetime as dt
import os
import ssl
import time

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings, strategies as st

from highway.config.certificates import certificate_end, make_context, tls_faults
from highway.config.loading import load_settings, shipped_text
from highway.config.models import TlsSettings
from highway.config.rendering import to_yaml
from highway.errors import CertificateError, ConfigError
from tests.harness.certificates import Authority

LINES = """listeners:
  secure:
    bind: 127.0.0.1
    port: 8883
    tls:
      certfile: {certfile}
      keyfile: {keyfile}
      cafile: {cafile}
      require_certificate: true
"""
# Key -> where its value stands in LINES.
PLACES = {"certfile": "6:17", "keyfile": "7:16", "cafile": "8:15", "require_certificate": "9:28"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority):
    return authority.server()


@pytest.fixture
def write(tmp_path, authority, server):
    """The configuration file with some of its paths replaced."""

    def write(**paths):
        paths = {"certfile": server.certfile, "keyfile": server.keyfile, "cafile": authority.cafile, **paths}
        path = tmp_path / "c.yaml"
        path.write_text(LINES.format(**paths))
        return path

    return write


def problems_of(path):
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ={})
    return [line.removeprefix(f"{path}:") for line in caught.value.problems]


def the_problem(path, key):
    """The one problem, which stands at `key`."""
    (problem,) = problems_of(path)
    start = f"{PLACES[key]}: listeners.secure.tls.{key}: "
    assert problem.startswith(start)
    return problem.removeprefix(start)


def test_good_files_arrive_with_their_paths_from_the_folder_of_the_configuration(write, tmp_path, server):
    for file in (server.certfile, server.keyfile):
        (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / file.name).chmod(0o600)
    settings = load_settings(write(certfile="server.pem", keyfile="./server.key"), environ={})
    tls = settings.listeners[0].tls
    assert tls.certfile == tmp_path / "server.pem"
    assert tls.keyfile == tmp_path / "server.key"
    assert tls.require_certificate
    assert settings.warnings == ()
    shown = tmp_path / "elsewhere" / "shown.yaml"
    shown.parent.mkdir()
    shown.write_text(to_yaml(settings))
    assert load_settings(shown, environ={}) == settings


def test_the_key_may_stand_in_the_certfile(tmp_path, server):
    path = tmp_path / "c.yaml"
    path.write_text(f"listeners: {{a: {{tls: {{certfile: {server.both}}}}}}}\n")
    assert load_settings(path, environ={}).listeners[0].tls == TlsSettings(server.both)
    path.write_text(f"listeners: {{a: {{tls: {{certfile: {server.certfile}}}}}}}\n")
    (problem,) = problems_of(path)
    assert "certfile: " in problem
    assert problem.endswith("; keyfile says where else it is")


@pytest.mark.parametrize("key", ["certfile", "keyfile", "cafile"])
def test_file_that_is_not_there(write, tmp_path, key):
    assert (
        the_problem(write(**{key: "gone.pem"}), key) == f"{tmp_path}/gone.pem can't be read: No such file or directory"
    )
    assert the_problem(write(**{key: "."}), key) == f"{tmp_path} can't be read: Is a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read(write, tmp_path):
    secret = tmp_path / "secret.key"
    secret.touch(mode=0)
    assert the_problem(write(keyfile=secret), "keyfile") == f"{secret} can't be read: Permission denied"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("certfile", "holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)"),
        ("keyfile", "holds no private key in PEM form (-----BEGIN PRIVATE KEY-----)"),
        ("cafile", "holds no certificate in PEM form (-----BEGIN CERTIFICATE-----), or a damaged one"),
    ],
)
def test_file_of_another_kind(write, tmp_path, key, text):
    other = tmp_path / "other"
    for content in (b"", b"\x30\x82\x01\x02", b"no certificate at all\n"):
        other.write_bytes(content)
        assert the_problem(write(**{key: other}), key) == f"{other} {text}"


@pytest.mark.parametrize("key", ["certfile", "keyfile", "cafile"])
def test_damaged_file(write, tmp_path, authority, server, key):
    good = {"certfile": server.certfile, "keyfile": server.keyfile, "cafile": authority.cafile}[key].read_text()
    first, second, *rest = good.splitlines()
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("\n".join([first, "A" * len(second), *rest]))
    assert the_problem(write(**{key: damaged}), key).startswith(f"{damaged} ")


def test_key_of_another_certificate(write, authority, server):
    other = authority.server("other")
    assert the_problem(write(keyfile=other.keyfile), "keyfile") == f"{other.keyfile} is not the key of the certificate"
    rsa = authority.server("rsa", key_type=trustme.KeyType.RSA)
    assert the_problem(write(keyfile=rsa.keyfile), "keyfile") == f"{rsa.keyfile} is not the key of the certificate"
    assert load_settings(write(certfile=rsa.certfile, keyfile=rsa.keyfile), environ={}).warnings == ()


def test_encrypted_key_asks_nobody_for_a_password(write, tmp_path, server):
    key = serialization.load_pem_private_key(server.keyfile.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert the_problem(write(keyfile=encrypted), "keyfile").startswith(f"the key in {encrypted} is encrypted; ")


def test_expired_certificate(write, authority):
    expired = authority.expired()
    path = write(certfile=expired.certfile, keyfile=expired.keyfile)
    assert the_problem(path, "certfile") == f"{expired.certfile} has expired; renew it"


def test_certificate_that_is_for_clients_only(write, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sensor")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=90))
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    made = builder.add_extension(usage, critical=False).sign(key, hashes.SHA256())
    both = tmp_path / "both.pem"
    pem = serialization.Encoding.PEM
    both.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    problem = the_problem(write(certfile=both, keyfile=both), "certfile")
    assert problem.startswith(f"{both} is no use for a server: ")


def test_certificate_near_its_end_or_before_its_begin_is_served_with_a_warning(write, authority):
    ending = authority.ending(days=3.5)
    (warning,) = load_settings(write(certfile=ending.certfile, keyfile=ending.keyfile), environ={}).warnings
    assert f":{PLACES['certfile']}: listeners.secure.tls.certfile: the certificate expires on " in warning
    assert warning.endswith(", in 3 days")
    assert 3 * 86_400 < certificate_end(TlsSettings(ending.certfile, ending.keyfile)) - time.time() < 4 * 86_400
    early = authority.early()
    (warning,) = load_settings(write(certfile=early.certfile, keyfile=early.keyfile), environ={}).warnings
    assert warning.endswith("the certificate is not valid yet: is the clock right?")


def test_a_key_that_everybody_may_read_is_served_with_a_warning(write, tmp_path, server):
    exposed = tmp_path / "exposed.key"
    exposed.write_bytes(server.keyfile.read_bytes())
    exposed.chmod(0o644)
    (warning,) = load_settings(write(keyfile=exposed), environ={}).warnings
    assert f":{PLACES['keyfile']}: listeners.secure.tls.keyfile: {exposed} holds a private key: everybody" in warning
    assert warning.endswith(f"run: chmod o-rwx {exposed}")


def test_every_fault_at_once(write, authority):
    path = write(certfile="gone.pem", cafile="gone.ca")
    path.write_text(path.read_text() + "topics: [{topic: a/#/b}]\n")
    problems = problems_of(path)
    assert [line.split(": ")[1] for line in problems] == [
        "listeners.secure.tls.certfile",
        "listeners.secure.tls.cafile",
        "topics[0].topic",
    ]


def test_clients_can_be_asked_for_certificates_only_with_an_authority(write):
    path = write()
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "cafile" not in line))
    (problem,) = problems_of(path)
    assert problem == (
        "8:28: listeners.secure.tls.require_certificate: cafile is missing: "
        "the authorities whose certificates clients may show"
    )


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ("{}", "listeners.a.tls.certfile: this key is missing, and has no default"),
        ("true", "listeners.a.tls: a section with keys of its own is wanted here, not 'true'"),
        (
            "{certfile: 5}",
            'listeners.a.tls.certfile: text is wanted, and YAML reads 5 as a number; put it in quotes: "5"',
        ),
        ("{certfle: x}", "listeners.a.tls.certfle: unknown key; did you mean 'certfile'?"),
        ('{certfile: ""}', "listeners.a.tls.certfile: an empty text is no value here"),
    ],
)
def test_mistakes_in_the_section(tmp_path, tls, problem):
    path = tmp_path / "c.yaml"
    path.write_text(f"listeners: {{a: {{tls: {tls}}}}}\n")
    assert any(line.endswith(problem) for line in problems_of(path))


def test_old_versions_of_tls_are_not_spoken(server):
    context = make_context(TlsSettings(server.certfile, server.keyfile))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(("require", "mode"), [(False, ssl.CERT_OPTIONAL), (True, ssl.CERT_REQUIRED)])
def test_what_clients_have_to_show(authority, server, require, mode):
    tls = TlsSettings(server.certfile, server.keyfile, authority.cafile, require)
    assert make_context(tls).verify_mode is mode


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_a_fault_or_harmless_and_never_a_traceback(data, server, tmp_path_factory):
    damaged = tmp_path_factory.getbasetemp() / "damaged.pem"
    content = server.both.read_bytes()
    at = data.draw(st.integers(0, len(content)))
    cut = data.draw(st.integers(0, 200))
    damaged.write_bytes(content[:at] + data.draw(st.binary(max_size=4)) + content[at + cut :])
    faults = tls_faults(TlsSettings(damaged))
    assert all(str(damaged) in fault.detail for fault in faults)
    first = None
    try:
        make_context(TlsSettings(damaged))
    except CertificateError as error:
        first = error.detail
    assert first in [fault.detail for fault in faults] or first is None


def test_examples_of_the_shipped_configuration_are_valid(tmp_path, authority, server):
    head, _, tail = shipped_text("highway.yaml").partition("  # secure:")
    examples, _, tail = tail.partition("\n\n")
    text = (
        head + ("  # secure:" + examples).replace("\n  # ", "\n  ").replace("  # secure:", "  secure:") + "\n\n" + tail
    )
    (tmp_path / "topics.yaml").write_text("[]")
    for name, file in (
        ("server.pem", server.certfile),
        ("server.key", server.keyfile),
        ("devices.pem", authority.cafile),
    ):
        (tmp_path / name).write_bytes(file.read_bytes())
    path = tmp_path / "highway.yaml"
    path.write_text(text)
    secure, web = load_settings(path, environ={}).listeners[1:]
    assert secure.tls == TlsSettings(
        tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "devices.pem", require_certificate=True
    )
    assert (secure.port, web.port, web.websocket) == (8883, 8083, "/mqtt")
