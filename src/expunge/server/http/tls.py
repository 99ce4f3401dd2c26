"""TLS for a server: a private authority and a certificate made in one go, or those that an operator
brings.

`make_tls` writes four files that only their owner can read: `ca.pem` (what clients are given,
inside their enrolment tokens), `ca.key` (needed again only to renew; it may be moved to a safe),
`tls.pem` and `tls.key`. Clients trust the authority and not the certificate, so a certificate can
be renewed, also for other names, without telling them.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from expunge.errors import FormatError, StoreError
from expunge.storage.files import make_folder, write_whole

CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca.key", "tls.pem", "tls.key"
_AUTHORITY_DAYS = 3650
_CERTIFICATE_DAYS = 825
_SKEW = datetime.timedelta(days=1)  # a client's clock may be behind
_DNS = re.compile(
    r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)
_LONGEST_NAME = 253
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all sane


@dataclass(frozen=True)
class TlsFiles:
    """Where the certificate of a server, its key, and the authority given to clients are kept."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def ca_text(self) -> str:
        """The authority as PEM: what enrolment tokens carry."""
        return self.ca.read_text("ascii")


def make_tls(
    folder: Path, names: Sequence[str], *, now: datetime.datetime | None = None
) -> TlsFiles:
    """A private authority and a certificate for these host names and addresses, in a folder that
    has neither yet.
    """
    if (folder / CA).exists() or (folder / CA_KEY).exists():
        raise StoreError(
            f"{folder} holds a certificate authority already: renew its certificate, or choose "
            "another folder"
        )
    when = now or datetime.datetime.now(datetime.UTC)
    alternatives = _alternatives(names)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"Expunge authority {secrets.token_hex(4)}")
    builder = _builder(subject, subject, key.public_key(), when, _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    authority = builder.sign(key, hashes.SHA256())
    make_folder(folder)
    _write_certificate(folder, authority, key, alternatives, when)
    write_whole(folder / CA_KEY, _key_pem(key))
    write_whole(folder / CA, authority.public_bytes(serialization.Encoding.PEM))
    return TlsFiles(folder / CA, folder / CERTIFICATE, folder / KEY)


def renew_certificate(
    folder: Path, names: Sequence[str] = (), *, now: datetime.datetime | None = None
) -> TlsFiles:
    """A new certificate by the same authority, for these names or for those of the old one; a
    running server picks it up.
    """
    when = now or datetime.datetime.now(datetime.UTC)
    authority = _certificate(folder / CA)
    try:
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    except OSError as problem:
        raise StoreError(
            f"the authority's key {folder / CA_KEY} cannot be read: put it back from its safe"
        ) from problem
    except (TypeError, ValueError) as problem:
        raise StoreError(
            f"{folder / CA_KEY} is no unencrypted private key: put back the one of this authority"
        ) from problem
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != authority.public_key()
    ):
        raise StoreError(
            f"{folder / CA_KEY} is not the key of {folder / CA}: put back the one of this authority"
        )
    alternatives = (
        _alternatives(names) if names else _alternatives_of(_certificate(folder / CERTIFICATE))
    )
    _write_certificate(folder, authority, key, alternatives, when)
    return TlsFiles(folder / CA, folder / CERTIFICATE, folder / KEY)


def expiry(certificate: Path) -> datetime.datetime:
    """When the (first) certificate of a file ends."""
    return _certificate(certificate).not_valid_after_utc


def out_of_date(certificate: Path, now: float) -> str:
    """What is wrong where a certificate is not valid at a time; empty if it is."""
    valid = _certificate(certificate)
    if now > valid.not_valid_after_utc.timestamp():
        return (
            f"the certificate {certificate} has expired by this machine's clock: renew it (expunge "
            "server renew-certificate), or, if it is good for longer, set the clock right"
        )
    if now < valid.not_valid_before_utc.timestamp():
        return (
            f"the certificate {certificate} is not valid yet by this machine's clock, which is "
            "behind then: set it right"
        )
    return ""


class ServerTls:
    """The TLS of a server at work: `context` for its listener; `refresh` takes up files that were
    replaced meanwhile.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers(_CIPHERS)
        self.context.options |= (
            ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        )
        self.context.set_alpn_protocols(["http/1.1"])
        self._seen = self._stamp()
        self._load(self.context)
        self.expires = expiry(
            certificate
        ).timestamp()  # when the certificate in use ends, in seconds since 1970

    def out_of_date(self, now: float) -> str:
        """What is wrong where the certificate is not valid at this time; empty if it is."""
        return out_of_date(self._certificate, now)

    def refresh(self) -> bool:
        """Use the files as they are now, if they changed; StoreError (and the old ones stay in use)
        if they do not fit.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._load(
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        )  # a trial: loading a bad pair may leave a context with half of it
        self._load(self.context)
        self._seen, self.expires = stamp, expiry(self._certificate).timestamp()
        return True

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        stamps = []
        for path, what in ((self._certificate, "certificate"), (self._key, "certificate's key")):
            try:
                status = path.stat()
            except OSError as problem:
                raise StoreError(
                    f"the {what} {path} cannot be read: {problem.strerror}"
                ) from problem
            stamps.append((status.st_mtime_ns, status.st_ino))
        return tuple(stamps)

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except OSError as problem:  # ssl.SSLError is one
            raise StoreError(
                f"certificate {self._certificate} and key {self._key} cannot be used: "
                f"{problem.strerror or problem}. Both must "
                "be PEM, the key unencrypted and that of the certificate"
            ) from problem


def _no_password() -> str:
    """Instead of asking on the terminal: an encrypted key is refused."""
    return ""


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    if not names:
        raise FormatError(
            "a certificate needs at least one host name or address under which clients reach the "
            "server"
        )
    alternatives: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if len(name) > _LONGEST_NAME or not _DNS.fullmatch(name):
                raise FormatError(
                    f"{name!r:.80} is neither a host name (in ASCII) nor an IP address"
                ) from None
            alternatives.append(x509.DNSName(name.lower()))
    return alternatives


def _alternatives_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        return list(
            certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except x509.ExtensionNotFound as problem:
        raise StoreError(
            "the old certificate names no hosts: give the names for the new one"
        ) from problem


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as problem:
        raise StoreError(f"the certificate {path} cannot be read: {problem.strerror}") from problem
    except ValueError as problem:
        raise StoreError(f"{path} is no certificate in PEM: {problem}") from problem


def _write_certificate(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    alternatives: list[x509.GeneralName],
    now: datetime.datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(
        _name("Expunge server"), authority.subject, key.public_key(), now, _CERTIFICATE_DAYS
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(authority=False), critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    signed = builder.add_extension(issuer, critical=False).sign(authority_key, hashes.SHA256())
    write_whole(folder / KEY, _key_pem(key))
    write_whole(folder / CERTIFICATE, signed.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(
        now + datetime.timedelta(days=days)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
