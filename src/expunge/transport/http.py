"""The HTTP carrier: the routes of docs/protocol.md over TLS, on persistent connections.

Law: every call ends in the server's bytes, in RefusedError if the server refused, or in
CarrierError if it is not known what the server did. Nothing is tried twice at one address; with
several, the next one is tried when one gives no answer, which is safe because every change is
applied once. The server's certificate is always verified.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import urlencode, urlsplit

from expunge._lazy import public_dir
from expunge.errors import CarrierError, FormatError, ProtocolError, requires_extra
from expunge.wire import protocol
from expunge.wire.refusals import from_json

with requires_extra("http", "The HTTP carrier"):
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

__all__ = ["HttpCarrier"]
__dir__ = public_dir(__name__)

_JSON = "application/json"
_BINARY = "application/octet-stream"
_HEAD = "application/vnd.expunge.published.v1"
_ROUNDS = "/v1/aggregations"
_ALWAYS_SAID = {"user-agent": "expunge", protocol.HEADER: str(protocol.BY_CLIENTS)}
_CONNECT_SECONDS = 10.0
_MOST_ANSWER = 1 << 30
_HEX = re.compile(r"([0-9a-f]{2})*")
_PHASE = re.compile(r"([a-z]+);dur=([0-9]+(?:\.[0-9]+)?)")
_CONNECTIONS = 8  # kept; more may be open at once


@dataclass(frozen=True)
class _Answer:
    status: int
    kind: str
    data: bytes
    timing: str


class HttpCarrier:
    """A carrier to a server by HTTP over TLS; safe to use from several threads.

    The methods are those of `expunge.wire.carrier.Carrier`. Each returns the server's bytes, or
    raises `RefusedError` (the server refused; this attempt changed nothing) or `CarrierError` (no
    whole answer came: offer the same bytes again). The module needs the extra `http`.

    Parameters
    ----------
    urls : str or sequence of str
        The addresses of one server, such as `https://expunge.example.org:8443`. If one gives no
        answer, the next is tried; the one that answered last is tried first. Plain `http` is
        accepted for loopback addresses only.
    ca : str, default ""
        The PEM of a private certificate authority (`Token.ca`); empty to trust the system's.
    timeout : float, default 90.0
        Seconds to wait for each part of an answer to arrive, or of a request to be taken. A request
        may have to wait for a round of secure aggregation.
    connect_timeout : float, default 10.0
        Seconds to wait for a connection.
    timing : callable or None, default None
        Called with a dict of the server's seconds by phase, for each request that got its receipt.

    Raises
    ------
    FormatError
        No address is given, one is malformed or not protected by TLS, or `ca` is not in PEM.

    Examples
    --------
    >>> import socket
    >>> from expunge.transport.http import HttpCarrier
    >>> HttpCarrier("http://expunge.example.org")
    Traceback (most recent call last):
    ...
    expunge.errors.FormatError: the address ... is not protected on its way: use https. ...

    A server that cannot be reached is a `CarrierError`; nothing was sent:

    >>> unused = socket.socket()  # bound and not listening: nobody else gets the port
    >>> unused.bind(("127.0.0.1", 0))
    >>> carrier = HttpCarrier(f"http://127.0.0.1:{unused.getsockname()[1]}")
    >>> carrier.checkpoint()
    Traceback (most recent call last):
    ...
    expunge.errors.CarrierError: http://127.0.0.1:... refuses connections: ... Nothing was sent
    >>> carrier.close()
    >>> unused.close()
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        ca: str = "",
        timeout: float = 90.0,
        connect_timeout: float = _CONNECT_SECONDS,
        timing: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise FormatError(
                "the server has no address: give at least one url, such as "
                "https://expunge.example.org:8443"
            )
        self._bases = [_checked(url) for url in given]
        self._pools = urllib3.PoolManager(
            num_pools=len(given),
            maxsize=_CONNECTIONS,
            ssl_context=_context(ca),
            timeout=urllib3.Timeout(connect=connect_timeout, read=timeout),
            retries=False,
        )
        self._pools.pool_classes_by_scheme = _pool_classes(timeout)
        self._timing = timing
        self._last = 0  # the address that answered last is tried first

    # -- actors ------------------------------------------------------------------------------------

    def federation(self) -> bytes:
        """Fetch the envelope `federation` (`GET /v1/federation`).

        Returns
        -------
        bytes
            The envelope.
        """
        return self._envelope("GET", "/v1/federation")

    def enrol(self, data: bytes) -> bytes:
        """Offer an enrolment (`POST /v1/enrolments`).

        Parameters
        ----------
        data : bytes
            An envelope of kind `enrolment`.

        Returns
        -------
        bytes
            An envelope of kind `enrolled`.
        """
        return self._envelope("POST", "/v1/enrolments", data)

    def request(self, data: bytes) -> bytes:
        """Offer a client's request (`POST /v1/requests`).

        Parameters
        ----------
        data : bytes
            The signed request.

        Returns
        -------
        bytes
            An envelope of kind `receipt`.
        """
        answer = self._ask("POST", "/v1/requests", data, {"content-type": _BINARY})
        if self._timing is not None:
            self._timing(_phases(answer.timing))
        return _content(answer, _JSON)

    def sync(self, data: bytes) -> bytes:
        """Ask what is new (`POST /v1/sync`).

        Parameters
        ----------
        data : bytes
            An envelope of kind `question`.

        Returns
        -------
        bytes
            An envelope of kind `answer`.
        """
        return self._envelope("POST", "/v1/sync", data)

    def aggregate(self, data: bytes) -> bytes:
        """Take a turn in a round of secure aggregation (`POST /v1/aggregations`).

        Parameters
        ----------
        data : bytes
            An envelope of kind `turn`, or the binary message of a phase.

        Returns
        -------
        bytes
            An envelope of kind `standing`.
        """
        return self._envelope("POST", _ROUNDS, data, _JSON if data[:1] == b"{" else _BINARY)

    def command(self, data: bytes) -> bytes:
        """Offer a command, or ask a question (`POST /v1/commands`).

        Parameters
        ----------
        data : bytes
            An envelope of kind `command`.

        Returns
        -------
        bytes
            An envelope of kind `result`.
        """
        return self._envelope("POST", "/v1/commands", data)

    # -- evidence ----------------------------------------------------------------------------------

    def head(self, known: str | None = None) -> bytes | None:
        """Fetch the published head with its certificate (`GET /v1/head`).

        Parameters
        ----------
        known : str or None, default None
            The digest of a head that the caller holds.

        Returns
        -------
        bytes or None
            The file of the head; None if the current head is the known one.
        """
        headers = {"if-none-match": f'"{known}"'} if known else {}
        answer = self._ask("GET", "/v1/head", headers=headers)
        if answer.status == 304 and known:
            return None
        return _content(answer, _HEAD)

    def checkpoint(self) -> bytes:
        """Fetch the envelope `checkpoint` (`GET /v1/checkpoint`).

        Returns
        -------
        bytes
            The envelope.
        """
        return self._envelope("GET", "/v1/checkpoint")

    def entries(self, start: int, end: int) -> list[bytes]:
        """Fetch consecutive entries of the audit log (`GET /v1/log/entries`).

        Parameters
        ----------
        start : int
            The index of the first entry, counted from 0.
        end : int
            The index after the last entry.

        Returns
        -------
        list of bytes
            Entries from `start` on; the server may answer with fewer.
        """
        texts = self._texts("/v1/log/entries", start=start, end=end)
        try:
            return [base64.b64decode(text, validate=True) for text in texts]
        except (binascii.Error, ValueError) as problem:
            raise CarrierError(
                "the server's answer is not a list of base64: ask again"
            ) from problem

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Fetch an inclusion proof (`GET /v1/log/inclusion`).

        Parameters
        ----------
        index : int
            The index of the entry, counted from 0.
        size : int
            The size of the log that the proof is for.

        Returns
        -------
        list of bytes
            Hashes of 32 bytes each.
        """
        return _hashes(self._texts("/v1/log/inclusion", index=index, size=size))

    def consistency(self, first: int, second: int) -> list[bytes]:
        """Fetch a consistency proof (`GET /v1/log/consistency`).

        Parameters
        ----------
        first : int
            The smaller size of the log.
        second : int
            The larger size of the log.

        Returns
        -------
        list of bytes
            Hashes of 32 bytes each.
        """
        return _hashes(self._texts("/v1/log/consistency", first=first, second=second))

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        for key in self._pools.pools.keys():  # noqa: SIM118 - no dictionary
            pool = self._pools.pools.get(key)
            if pool is not None:
                pool.close()
        self._pools.clear()

    # -- HTTP --------------------------------------------------------------------------------------

    def _envelope(
        self, method: str, path: str, body: bytes | None = None, kind: str = _JSON
    ) -> bytes:
        return _content(
            self._ask(method, path, body, {} if body is None else {"content-type": kind}), _JSON
        )

    def _texts(self, path: str, **parameters: int) -> list[str]:
        data = _content(self._ask("GET", f"{path}?{urlencode(parameters)}"), _JSON)
        try:
            texts = json.loads(data)
        except ValueError as problem:
            raise CarrierError("the server's answer is not JSON: ask again") from problem
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise CarrierError("the server's answer is not a list of texts: ask again")
        return texts

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Answer:
        """The answer of the first address that gives one."""
        troubles = []
        for step in range(len(self._bases)):
            index = (self._last + step) % len(self._bases)
            try:
                answer = self._ask_one(self._bases[index], method, path, body, headers or {})
            except CarrierError as trouble:
                troubles.append(trouble)
                continue
            self._last = index
            return answer
        if len(troubles) == 1:
            raise troubles[0]
        raise CarrierError("; ".join(str(trouble) for trouble in troubles)) from troubles[-1]

    def _ask_one(
        self, base: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> _Answer:
        try:
            response = self._pools.request(
                method,
                base + path,
                body=body,
                # The date, so that clocks are compared
                headers={"date": formatdate(usegmt=True), **_ALWAYS_SAID, **headers},
                redirect=False,
                retries=False,
                preload_content=False,
            )
            try:
                data = response.read(_MOST_ANSWER + 1, decode_content=True)
            except BaseException:
                response.close()  # the rest of it must not be taken for the next answer
                raise
            if len(data) > _MOST_ANSWER:
                response.close()
                raise CarrierError(
                    f"{base} answers with more than {_MOST_ANSWER} bytes: this is not an Expunge "
                    "server"
                )
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as problem:
            raise CarrierError(f"{base} {_trouble(problem)}") from problem
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        answer = _Answer(response.status, kind, data, response.headers.get("server-timing", ""))
        _require_spoken(answer, response.headers.get(protocol.HEADER), base, path)
        if answer.status not in (200, 304):
            raise _refusal(answer, base, response.headers.get("location", ""))
        return answer


def _require_spoken(answer: _Answer, header: str | None, base: str, path: str) -> None:
    """ProtocolError if the server speaks no version of the protocol that is spoken here.

    One of the first version does not say so; neither does what is not a server.
    """
    theirs = protocol.window_of(header) if header is not None else None
    if theirs is None and answer.status in (200, 304):
        theirs = protocol.FIRST
    ours = protocol.BY_MASKED_CLIENTS if path == _ROUNDS else protocol.BY_CLIENTS
    problem = "" if theirs is None else protocol.problem_with_server(theirs, ours)
    if problem:
        raise ProtocolError(f"{base}: {problem}")


def _content(answer: _Answer, kind: str) -> bytes:
    if answer.status != 200 or answer.kind != kind:
        raise CarrierError(
            f"the answer is of type {answer.kind or 'unknown'!r:.80}, not {kind}: something else "
            "than an Expunge server answers at this address"
        )
    return answer.data


def _refusal(answer: _Answer, base: str, location: str) -> Exception:
    """What a status other than 200 means: the server's own refusal, or another party's."""
    if 300 <= answer.status < 400:
        return CarrierError(
            f"{base} sends us elsewhere ({location!r:.200}): give that address instead"
        )
    if answer.kind == _JSON:
        with suppress(ValueError):
            return from_json(json.loads(answer.data))
    reason = (
        "is overloaded or not running behind its proxy"
        if answer.status in (502, 503, 504)
        else "does not say why"
    )
    return CarrierError(
        f"{base} answers with status {answer.status} and {reason}: offer the same again later"
    )


# The first that fits: with urllib3, a name that is not known is a connection refused, and that is
# one that timed out.
_TROUBLES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (
        urllib3.exceptions.NameResolutionError,
        (
            "is not known by that name: check the address and this machine's name service. Nothing "
            "was sent"
        ),
    ),
    (
        urllib3.exceptions.NewConnectionError,
        "refuses connections: check that the server runs, its address and port. Nothing was sent",
    ),
    (
        urllib3.exceptions.ConnectTimeoutError,
        "does not answer at all: check the address, and firewalls on the way. Nothing was sent",
    ),
    (
        (urllib3.exceptions.ReadTimeoutError, TimeoutError),
        "did not answer in time: it is not known whether it took effect, offer the same again",
    ),
)


def _trouble(problem: Exception) -> str:
    """What went wrong on the way, and what to do about it."""
    reason: BaseException = (
        problem.reason
        if isinstance(problem, urllib3.exceptions.MaxRetryError) and problem.reason
        else problem
    )
    if "CERTIFICATE_VERIFY_FAILED" in str(reason):
        return (
            "cannot be trusted: its certificate is not good for this address "
            f"({_innermost(reason)!s:.200}). If it was made by expunge init, use the authority in "
            "the enrolment token; otherwise ask the operator. Nothing was sent"
        )
    for kinds, text in _TROUBLES:
        if isinstance(reason, kinds) or isinstance(_innermost(reason), kinds):
            return text
    if isinstance(reason, (urllib3.exceptions.SSLError, ssl.SSLError)):
        return (
            f"does not speak TLS as it should ({_innermost(reason)!s:.200}): check the address "
            "and port"
        )
    return (
        f"closed the connection before its answer was whole ({_innermost(reason)!s:.200}): "
        "offer the same again"
    )


def _innermost(reason: BaseException) -> BaseException:
    """The error that an error speaks of, and so on."""
    while reason.args and isinstance(reason.args[-1], BaseException):
        reason = reason.args[-1]
    return reason


def _checked(url: str) -> str:
    """The beginning of every address at this server."""
    parts = urlsplit(url)
    try:
        host, _ = parts.hostname, parts.port
    except ValueError as problem:
        raise FormatError(f"the address {url!r:.200} has an impossible port") from problem
    if (
        parts.scheme not in ("https", "http")
        or not host
        or parts.query
        or parts.fragment
        or parts.username
    ):
        raise FormatError(
            f"the address {url!r:.200} must look like https://expunge.example.org:8443"
        )
    if parts.scheme == "http" and not _is_this_machine(host):
        raise FormatError(
            f"the address {url!r:.200} is not protected on its way: use https. Plain http is for "
            "this machine only (127.0.0.1)"
        )
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _context(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as problem:
        raise FormatError(
            f"the authority given is no certificate in PEM: {problem}. Copy the enrolment token "
            "again"
        ) from problem
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _phases(text: str) -> dict[str, float]:
    """The seconds by phase of a `Server-Timing` header; what is not understood is left out."""
    matches = (_PHASE.fullmatch(piece.strip()) for piece in text.split(","))
    return {piece[1]: float(piece[2]) / 1000.0 for piece in matches if piece}


def _hashes(texts: list[str]) -> list[bytes]:
    if not all(_HEX.fullmatch(text) for text in texts):
        raise CarrierError("the server's answer is not a list of hexadecimal digests: ask again")
    return [bytes.fromhex(text) for text in texts]


def _pool_classes(seconds: float) -> dict[str, Any]:
    """Pools whose connections are given this long to take a piece of what is sent; urllib3 has one
    limit with connecting.
    """

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(seconds)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(seconds)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
