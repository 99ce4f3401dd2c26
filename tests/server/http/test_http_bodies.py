"""Bodies that are too long, too short, too slow or badly put: refused as soon as that is known,
with nothing kept or changed.
"""

from __future__ import annotations

import hashlib
import json
import resource
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from typing import cast

import pytest

from expunge.crypto import SigningKey
from expunge.errors import CarrierError, RefusedError
from expunge.server.http.limits import Limits
from expunge.wire.carrier import Carrier, CheckedCarrier
from support.https_server import Answer, HandClient, Served, served

LARGEST = 300_000
LIMITS = Limits(
    body_seconds=1.0,
    slowest=1 << 20,
    head_seconds=0.5,
    head_bytes=16 << 10,
    linger_seconds=0.1,
    room_seconds=0.3,
    envelope=100_000,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(
        tmp_path_factory.mktemp("bodies"),
        limits=LIMITS,
        largest_request=LARGEST,
        most_in_flight=LARGEST,
    ) as one:
        yield one


@pytest.fixture
def client(server: Served) -> Iterator[HandClient]:
    """An enrolled client.

    Whatever the test says: nothing changes, nothing stays held, and a good request is taken
    afterwards.
    """
    name = f"client-{secrets.token_hex(4)}"
    one, another = server.site.client(name, 2), server.site.client(f"{name}-b", 2)
    before = server.site.standing()
    yield one
    assert server.site.standing() == before
    assert server.ask("POST", "/v1/requests", another.request(add=[0])).status == 200


def head(length: int | None, path: str = "/v1/requests", extra: str = "") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{size}\r\n{extra}\r\n".encode()


def read_answer(connection: ssl.SSLSocket) -> Answer:
    """What came, until the other side closed."""
    data = b""
    while True:
        try:
            piece = connection.recv(65536)
        except (ConnectionError, ssl.SSLError):
            break
        if not piece:
            break
        data += piece
        top, found, body = data.partition(b"\r\n\r\n")
        if found:
            lines = top.decode().split("\r\n")
            headers = {
                name.lower(): value
                for name, _, value in (line.partition(": ") for line in lines[1:])
            }
            if len(body) >= int(headers["content-length"]):
                return Answer(int(lines[0].split()[1]), headers, body)
    return Answer(0, {}, data)


def code(answer: Answer) -> str:
    return str(json.loads(answer.data)["code"])


@pytest.mark.usefixtures("client")
def test_a_gigabyte_is_refused_by_its_announcement(server: Served) -> None:
    with server.raw() as connection:
        connection.sendall(head(1 << 30))  # and not one byte of it
        answer = read_answer(connection)
    assert (answer.status, code(answer), answer.headers["connection"]) == (
        413,
        "too-large",
        "close",
    )
    assert json.loads(answer.data)["details"] == {"largest": LARGEST}


def test_a_client_that_asks_first_is_not_told_to_go_ahead(
    server: Served, client: HandClient
) -> None:
    with server.raw() as connection:
        connection.sendall(head(1 << 30, extra="Expect: 100-continue\r\n"))
        assert read_answer(connection).status == 413
    data = client.request(add=[0], sequence=1)
    with server.raw() as connection:
        connection.sendall(head(len(data), extra="Expect: 100-continue\r\n"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")


def test_an_endless_body_is_refused_when_the_limit_is_passed_and_not_kept(
    server: Served, client: HandClient
) -> None:
    start = client.request(add=[0], sequence=1)  # well signed, so that the rest is wanted
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    piece = b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"
    with server.raw() as connection:
        connection.sendall(head(None) + b"%x\r\n" % len(start) + start + b"\r\n")
        sent = 0
        try:
            while sent < 1 << 30:
                connection.sendall(piece)
                sent += 1 << 20
        except (OSError, ssl.SSLError):  # it is closed when the server has had enough
            pass
        answer = read_answer(connection)
    assert sent < 1 << 30
    assert answer.status in (
        413,
        0,
    )  # 0: closing took the answer with it, which a client that stops in time does not see
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < 64 << 10  # kilobytes


def test_a_body_just_beyond_the_limit_is_refused_with_an_answer(
    server: Served, client: HandClient
) -> None:
    start = client.request(add=[0], sequence=1)
    with server.raw() as connection:
        connection.sendall(head(None) + b"%x\r\n" % len(start) + start + b"\r\n")
        connection.sendall(b"%x\r\n" % LARGEST + bytes(LARGEST) + b"\r\n")
        answer = read_answer(connection)
    assert (answer.status, code(answer)) == (413, "too-large")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("path", ["/v1/enrolments", "/v1/sync", "/v1/commands"])
def test_envelopes_have_a_limit_of_their_own(server: Served, path: str) -> None:
    answer = server.ask("POST", path, b" " * (LIMITS.envelope + 1))
    assert (answer.status, code(answer)) == (413, "too-large")
    assert server.ask("POST", path, b" " * LIMITS.envelope).status == 400


def test_a_stranger_is_refused_before_its_long_body_is_taken(
    server: Served, client: HandClient
) -> None:
    federation, other = server.site.federation, SigningKey(bytes(32))
    cases = [
        (HandClient("after-all", other, federation, 2), 403, "unknown-actor"),
        (HandClient(client.name, other, federation, 2), 403, "bad-signature"),
        (HandClient("operator", server.site.operator, federation, 2), 403, "not-allowed"),
        (HandClient(client.name, client.key, "0" * 32, 2), 422, "wrong-federation"),
    ]
    for stranger, status, problem in cases:
        start = stranger.request(add=[0])
        with server.raw() as connection:
            connection.sendall(head(LARGEST) + start + bytes(LIMITS.free))
            answer = read_answer(connection)
        assert (answer.status, code(answer)) == (status, problem)
    with server.raw() as connection:
        connection.sendall(head(LARGEST) + bytes(LIMITS.free))
        answer = read_answer(connection)
    assert (answer.status, code(answer)) == (400, "malformed")


@pytest.mark.usefixtures("client")
def test_a_long_header_is_read_before_it_is_judged(server: Served) -> None:
    size = LIMITS.free + 10_000
    start = b"expunge\x00request\x00\x01" + size.to_bytes(4, "little") + b"{" + bytes(size)
    answer = server.ask("POST", "/v1/requests", start + bytes(LARGEST - len(start)))
    assert (answer.status, code(answer)) == (400, "malformed")


@pytest.mark.parametrize("length", [1000, 200_000, None])
def test_a_truncated_body_changes_nothing(
    server: Served, client: HandClient, length: int | None
) -> None:
    data = client.request(add=[0, 1], sequence=1)
    with server.raw() as connection:
        connection.sendall(head(length) + (b"" if length else b"%x\r\n" % len(data)) + data[:-1])
    time.sleep(0.05)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("chunk", [b"zz\r\nabc\r\n", b"3\r\nabcdef\r\n", b"-1\r\n\r\n"])
def test_bad_chunks_are_refused(server: Served, chunk: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(head(None) + chunk)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.usefixtures("client")
def test_contradicting_lengths_are_refused(server: Served) -> None:
    for extra in ("Transfer-Encoding: chunked\r\n", "Content-Length: 7\r\n"):
        with server.raw() as connection:
            connection.sendall(head(5, extra=extra) + b"hello")
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.usefixtures("client")
def test_a_body_that_does_not_come_is_given_up(server: Served) -> None:
    with server.raw() as connection:
        connection.sendall(head(1000) + b"expunge")
        answer = read_answer(connection)
    assert (answer.status, code(answer)) == (408, "malformed")
    assert json.loads(answer.data)["details"] == {"late": True, "to": ""}


def test_a_client_whose_body_came_too_late_is_told_to_offer_it_again(
    server: Served, client: HandClient
) -> None:
    data = client.request(add=[0], sequence=1)

    class Slow:
        """A line on which half of the body arrives."""

        def request(self, data: bytes) -> bytes:
            with server.raw() as connection:
                connection.sendall(head(len(data)) + data[: len(data) // 2])
                answer = json.loads(read_answer(connection).data)
            raise RefusedError(answer["code"], answer["reason"], **answer["details"])

    with pytest.raises(CarrierError, match="offer it again over a faster connection"):
        CheckedCarrier(cast("Carrier", Slow())).request(data)


@pytest.mark.parametrize("path", ["enrolments", "requests", "sync", "aggregations", "commands"])
@pytest.mark.usefixtures("client")
def test_what_cannot_be_read_is_named_by_its_digest(server: Served, path: str) -> None:
    for data in (b"{", b"expunge\x00said\x00", b"nonsense"):
        answer = server.ask("POST", f"/v1/{path}", data)
        assert (answer.status, code(answer)) == (400, "malformed")
        assert json.loads(answer.data)["details"] == {"to": hashlib.sha256(data).hexdigest()}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("said", [b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_connection_that_never_asks_is_dropped(server: Served, said: bytes) -> None:
    with server.raw() as connection:
        connection.sendall(said)
        assert read_answer(connection).data == b""


def test_an_unsecured_connection_is_dropped(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP" not in connection.recv(1000)


@pytest.mark.usefixtures("client")
def test_endless_headers_are_refused(server: Served) -> None:
    with server.raw() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
        try:
            for _ in range(100):
                connection.sendall(bytes([97]) * 10_000)
        except OSError:
            pass
        answer = read_answer(connection)
    assert answer.status in (400, 0)


def test_there_is_room_for_so_many_bytes_at_once(server: Served) -> None:
    first, second = server.site.client("roomy", 2), server.site.client("crowded", 2)
    before = server.site.standing()
    with server.raw() as holding, server.raw() as waiting:
        holding.sendall(
            head(LARGEST) + first.request(add=[0]) + bytes(LIMITS.free)
        )  # all the room there is
        while (
            f"expunge_http_held_bytes {float(LARGEST)}\n".encode()
            not in server.ask("GET", "/metrics").data
        ):
            time.sleep(0.01)
        waiting.sendall(head(LARGEST) + second.request(add=[0]) + bytes(LIMITS.free))
        answer = read_answer(waiting)
        assert (answer.status, code(answer)) == (429, "too-many")
        assert int(answer.headers["retry-after"]) >= 1
    assert server.site.standing() == before
    while b"expunge_http_held_bytes 0.0\n" not in server.ask("GET", "/metrics").data:
        time.sleep(0.01)
    for client in (first, second):
        client.sequence = 0
        assert server.ask("POST", "/v1/requests", client.request(add=[0])).status == 200


def test_a_long_request_is_applied(server: Served) -> None:
    client = server.site.client("long", 2000)
    data = client.request(add=range(2000))
    assert LIMITS.free < len(data) < LARGEST
    assert server.ask("POST", "/v1/requests", data).status == 200
    chunked = client.request(delete=range(1500))
    assert len(chunked) > LIMITS.free
    assert (
        server.ask("POST", "/v1/requests", iter([chunked[:100_000], chunked[100_000:]])).status
        == 200
    )
