"""An authority of our own, and the certificates that it signs, as files."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Authority", "Certificate"]


class Certificate:
    """A certificate and its key, in two files and in one."""

    def __init__(self, directory: Path, name: str, made: trustme.LeafCert) -> None:
        self.certfile = directory / f"{name}.pem"
        self.keyfile = directory / f"{name}.key"
        self.both = directory / f"{name}-both.pem"
        self.write(made)

    def write(self, made: trustme.LeafCert) -> None:
        """Put `made` in the place of what the files hold, as a renewal does."""
        self.certfile.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        self.keyfile.write_bytes(made.private_key_pem.bytes())
        self.both.write_bytes(made.private_key_and_cert_chain_pem.bytes())
        for path in (self.keyfile, self.both):
            path.chmod(0o600)


class Authority:
    """Signs for 127.0.0.1, ::1 and localhost, and for clients by name."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.cafile = directory / "ca.pem"
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.cafile.write_bytes(self._ca.cert_pem.bytes())

    def issue(self, *, common_name: str | None = None, **settings: Any) -> trustme.LeafCert:
        settings.setdefault("key_type", trustme.KeyType.ECDSA)
        return self._ca.issue_cert("127.0.0.1", "::1", "localhost", common_name=common_name, **settings)

    def server(self, name: str = "server", **settings: Any) -> Certificate:
        return Certificate(self.directory, name, self.issue(**settings))

    def client(self, name: str) -> Certificate:
        return Certificate(self.directory, name, self.issue(common_name=name))

    def expired(self) -> Certificate:
        now = dt.datetime.now(dt.UTC)
        day = dt.timedelta(days=1)
        return self.server("expired", not_before=now - 2 * day, not_after=now - day)

    def ending(self, days: float) -> Certificate:
        end = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
        return self.server("ending", not_after=end)

    def early(self) -> Certificate:
        now = dt.datetime.now(dt.UTC)
        day = dt.timedelta(days=1)
        return self.server("early", not_before=now + day, not_after=now + 90 * day)

    def device(self, uri: str) -> Certificate:
        """A client certificate with a URI in its subject alternative name, which trustme can't make."""
        signer = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "devices")]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
            .sign(signer, hashes.SHA256())  # type: ignore[arg-type]  # an EC key, as all of this authority's
        )
        certificate = Certificate(self.directory, "device", self.issue())
        certificate.certfile.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        certificate.keyfile.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate
