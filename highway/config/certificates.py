"""The files behind `tls:`: from their paths to a context that serves them, or to what is wrong with which of them.

Whether they are any good is found out as a client would: a handshake with the certificate, in memory, against a client
that trusts just this certificate. What OpenSSL refuses there (an expired certificate, one that isn't for servers, a key
that is too short) it would refuse each client later, one at a time.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from highway.errors import CertificateError

if TYPE_CHECKING:
    from pathlib import Path

    from highway.config.models import TlsSettings

__all__ = ["certificate_end", "make_context", "tls_faults"]

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"

# Codes of X509_verify_cert that need words of their own.
_NOT_YET_VALID = 9
_EXPIRED = 10

# Part of the reason that OpenSSL gives -> what it means for whoever made the files.
_EXPLANATIONS = {
    "KEY_VALUES_MISMATCH": "is not the key of the certificate",
    "KEY_TYPE_MISMATCH": "is not the key of the certificate",
    "NO_CERTIFICATE_ASSIGNED": "is not the key of the certificate",  # of another kind: RSA, where the other is EC
    "EE_KEY_TOO_SMALL": "holds a key that is too short for TLS; make one of 256 bits (EC) or 2048 (RSA)",
    "DH_KEY_TOO_SMALL": "holds a key that is too short for TLS; make one of 256 bits (EC) or 2048 (RSA)",
    "CA_MD_TOO_WEAK": "is signed with a hash that TLS doesn't accept any more; have it signed with SHA-256",
}


def make_context(tls: TlsSettings) -> ssl.SSLContext:
    """A context that serves what `tls` names. CertificateError says which of its files can't be used, and why."""
    context = _certificate_context(tls)
    if tls.cafile is not None:
        _load_authorities(context, tls.cafile)
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_certificate else ssl.CERT_OPTIONAL
    elif tls.require_certificate:
        raise CertificateError(
            "require_certificate", "cafile is missing: the authorities whose certificates clients may show"
        )
    return context


def tls_faults(tls: TlsSettings) -> list[CertificateError]:
    """Everything that is wrong with `tls`, where `make_context` stops at the first."""
    faults = []
    try:
        certificate_end(tls)
    except CertificateError as error:
        faults.append(error)
    try:
        if tls.cafile is not None:
            _load_authorities(_new_context(), tls.cafile)
        elif tls.require_certificate:
            make_context(tls)
    except CertificateError as error:
        if all(fault.detail != error.detail for fault in faults):
            faults.append(error)
    return faults


def certificate_end(tls: TlsSettings) -> float:
    """When the certificate expires, as Unix time. CertificateError if it can't be served, or is expired already.

    One that isn't valid yet passes, as 0.0: a gateway without a battery for its clock has to start before it is told
    the time.
    """
    server = _certificate_context(tls)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    try:
        shown = _shake_hands(server, client).getpeercert(binary_form=True)
        assert shown is not None
        client.load_verify_locations(cadata=shown)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust in the certificate itself is enough
        client.verify_mode = ssl.CERT_REQUIRED
        verified = _shake_hands(server, client).getpeercert()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _NOT_YET_VALID:
            return 0.0
        if error.verify_code == _EXPIRED:
            raise CertificateError("certfile", f"{tls.certfile} has expired; renew it") from error
        raise CertificateError("certfile", f"{tls.certfile} is no use for a server: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise CertificateError("certfile", f"{tls.certfile} {_explain(error)}") from error
    assert verified is not None
    end = verified["notAfter"]
    assert isinstance(end, str)
    return float(ssl.cert_time_to_seconds(end))


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client of TLS 1.2 could ask for one handshake after the other, each as dear as a connection.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _certificate_context(tls: TlsSettings) -> ssl.SSLContext:
    certificate = _read("certfile", tls.certfile)
    if _CERTIFICATE not in certificate:
        raise CertificateError("certfile", f"{tls.certfile} holds no certificate in PEM form ({_CERTIFICATE.decode()})")
    key_name, key_file = ("keyfile", tls.keyfile) if tls.keyfile is not None else ("certfile", tls.certfile)
    if _KEY not in _read(key_name, key_file):
        hint = "" if tls.keyfile is not None else "; keyfile says where else it is"
        raise CertificateError(
            key_name, f"{key_file} holds no private key in PEM form (-----BEGIN {_KEY.decode()}){hint}"
        )
    context = _new_context()

    def no_password() -> str:
        # OpenSSL would ask the terminal for it, and a service has none.
        raise CertificateError(key_name, f"the key in {key_file} is encrypted; keep it without a password, mode 0600")

    try:
        context.load_cert_chain(tls.certfile, key_file, no_password)
    except ssl.SSLError as error:
        if not _is_readable(tls.certfile):
            raise CertificateError("certfile", f"{tls.certfile} is damaged") from error
        raise CertificateError(key_name, f"{key_file} {_explain(error)}") from error
    return context


def _is_readable(certfile: Path) -> bool:
    """Whether the certificates in it are; OpenSSL doesn't say which of the two files it stumbled over."""
    try:
        _new_context().load_verify_locations(certfile)
    except ssl.SSLError:
        return False
    return True


def _explain(error: ssl.SSLError) -> str:
    reason = str(error.reason or error)
    return next((text for part, text in _EXPLANATIONS.items() if part in reason), f"can't be used: {reason}")


def _load_authorities(context: ssl.SSLContext, cafile: Path) -> None:
    """Let `context` take certificates that an authority in `cafile` signed."""
    _read("cafile", cafile)
    try:
        context.load_verify_locations(cafile)
    except ssl.SSLError as error:
        raise CertificateError(
            "cafile", f"{cafile} holds no certificate in PEM form ({_CERTIFICATE.decode()}), or a damaged one"
        ) from error


def _read(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(key, f"{path} can't be read: {error.strerror or error}") from error


def _shake_hands(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> ssl.SSLObject:
    """The client's side after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return client
