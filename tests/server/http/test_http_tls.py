"""Certificates: made in one go, renewed without telling clients, refused when they do not fit."""

from __future__ import annotations

import datetime
import http.client
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from expunge.errors import FormatError, StoreError
from expunge.server.http.tls import ServerTls, expiry, make_tls, renew_certificate
from support.https_server import HOST, served, trusting


def presented(port: int, ca: str) -> bytes:
    with (
        socket.create_connection((HOST, port), timeout=10) as plain,
        trusting(ca).wrap_socket(plain, server_hostname=HOST) as one,
    ):
        found = one.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    files = make_tls(tmp_path / "tls", ["expunge.example.org", "192.0.2.7", "2001:db8::7"])
    for path in (tmp_path / "tls").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    names = x509.load_pem_x509_certificate(
        files.certificate.read_bytes()
    ).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["expunge.example.org"]
    assert [str(one) for one in names.value.get_values_for_type(x509.IPAddress)] == [
        "192.0.2.7",
        "2001:db8::7",
    ]
    with pytest.raises(StoreError, match="already"):
        make_tls(tmp_path / "tls", ["localhost"])


def test_the_chain_passes_the_strictest_verification(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        context = trusting(server.ca)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection(HOST, server.port, timeout=10, context=context)
        try:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
        finally:
            connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_good_versions_are_spoken(tmp_path: Path, version: ssl.TLSVersion) -> None:
    with served(tmp_path) as server:
        context = trusting(server.ca)
        context.minimum_version = context.maximum_version = version
        plain = socket.create_connection((HOST, server.port), timeout=10)
        with context.wrap_socket(plain, server_hostname="localhost") as one:
            assert one.version() == version.name.replace("_", ".")
            cipher = one.cipher()
    assert cipher is not None
    assert any(word in cipher[0] for word in ("GCM", "CHACHA20"))


def test_old_tls_is_refused(tmp_path: Path) -> None:
    assert ServerTls(*_pair(tmp_path)).context.minimum_version == ssl.TLSVersion.TLSv1_2


def _pair(folder: Path) -> tuple[Path, Path]:
    files = make_tls(folder / "pair", ["localhost"])
    return files.certificate, files.key


@pytest.mark.parametrize(
    "names", [[], [""], ["a b"], ["-x"], ["x" * 64], ["bücher.example"], ["a..b"], ["1.2.3.4/8"]]
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(FormatError):
        make_tls(tmp_path / "tls", names)
    assert not (tmp_path / "tls").exists()


def test_a_running_server_takes_up_a_renewed_certificate(tmp_path: Path) -> None:
    files = make_tls(
        tmp_path / "tls", ["localhost"], now=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    )
    tls = ServerTls(files.certificate, files.key)
    assert tls.expires == expiry(files.certificate).timestamp()
    assert not tls.refresh()
    before, ends = files.certificate.read_bytes(), tls.expires
    renewed = renew_certificate(
        tmp_path / "tls", now=datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
    )
    assert renewed.ca_text == files.ca_text
    assert tls.refresh()
    assert not tls.refresh()
    assert renewed.certificate.read_bytes() != before
    assert tls.expires > ends
    files.certificate.write_bytes(before)  # of another key than the one beside it
    with pytest.raises(StoreError, match="cannot be used"):
        tls.refresh()
    assert tls.expires > ends


def test_clients_trust_a_renewed_certificate_without_being_told(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        first = presented(server.port, server.ca)
    renewed = renew_certificate(tmp_path / "tls", ["other.example.org", HOST])
    context = ServerTls(renewed.certificate, renewed.key).context
    with socket.create_server((HOST, 0)) as listener:

        def answer() -> None:
            plain, _ = listener.accept()
            with plain, context.wrap_socket(plain, server_side=True) as one:
                one.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        second = presented(listener.getsockname()[1], renewed.ca_text)
        thread.join(10)
    assert first != second


def test_renewal_needs_the_authority(tmp_path: Path) -> None:
    files = make_tls(tmp_path / "tls", ["localhost"])
    before = files.certificate.read_bytes()
    other = make_tls(tmp_path / "other", ["localhost"])
    key = (tmp_path / "tls" / "ca.key").read_bytes()
    (tmp_path / "tls" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(StoreError, match="is not the key of"):
        renew_certificate(tmp_path / "tls")
    (tmp_path / "tls" / "ca.key").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match="no unencrypted private key"):
        renew_certificate(tmp_path / "tls")
    (tmp_path / "tls" / "ca.key").unlink()
    with pytest.raises(StoreError, match="safe"):
        renew_certificate(tmp_path / "tls")
    assert files.certificate.read_bytes() == before
    (tmp_path / "tls" / "ca.key").write_bytes(key)
    renew_certificate(tmp_path / "tls", ["new.example.org"])
    assert other.certificate.exists()


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    certificate, key = _pair(tmp_path)
    other = make_tls(tmp_path / "other", ["localhost"])
    for pair in ((certificate, other.key), (key, key), (certificate, certificate)):
        with pytest.raises(StoreError, match="cannot be used"):
            ServerTls(*pair)
    with pytest.raises(StoreError, match="cannot be read"):
        ServerTls(tmp_path / "none.pem", key)
    with pytest.raises(StoreError, match="no certificate"):
        expiry(key)
