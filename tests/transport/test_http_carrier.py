"""The HTTP carrier: the same bytes as the local one, refusals as refusals, and any trouble on the
way as CarrierError.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import urllib3

from expunge.crypto import Envelope, SigningKey
from expunge.errors import CarrierError, FormatError, ProtocolError, RefusedError
from expunge.server.http.tls import make_tls
from expunge.transport.http import HttpCarrier
from support.https_server import HOST, HandClient, Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("carrier")) as one:
        yield one


@pytest.fixture
def carrier(server: Served) -> Iterator[HttpCarrier]:
    one = HttpCarrier(server.url, ca=server.ca, timeout=20.0)
    yield one
    one.close()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The address of a server that says these bytes, one connection after another, whatever it is
    asked.
    """
    with socket.create_server((HOST, 0)) as listener:

        def run() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    connection.recv(65536)
                    with suppress(OSError):  # whoever has heard enough may have gone
                        connection.sendall(answer)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://{HOST}:{listener.getsockname()[1]}"
        thread.join(10)


def closed_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_server_refuses_who_speaks_no_version_in_common_and_says_what_it_speaks(
    server: Served,
) -> None:
    pools = urllib3.PoolManager(ssl_context=ssl.create_default_context(cadata=server.ca))

    def ask(route: str, **headers: str) -> urllib3.BaseHTTPResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return pools.request("GET", server.url + route, headers=named)

    first = ask("/v1/checkpoint", user_agent="expunge")  # as 0.1.0 asks
    assert (first.status, first.json()["code"]) == (426, "wrong-protocol")
    assert "upgrade the client to at least Expunge 0.2.0" in first.json()["reason"]
    assert ask("/v1/checkpoint", expunge_protocols="7-9").status == 426
    for headers in ({"user_agent": "expunge", "expunge_protocols": "1-2"}, {"user_agent": "curl"}):
        answer = ask("/v1/checkpoint", **headers)
        assert (answer.status, answer.headers["expunge-protocols"]) == (200, "2-2")
    assert ask("/healthz", user_agent="expunge").status == 200
    pools.clear()


@pytest.mark.parametrize(
    ("route", "header", "remedy"),
    [
        ("sync", "expunge-protocols: 7-9\r\n", "upgrade this client to at least a release"),
        ("aggregate", "", "upgrade the server to at least Expunge 0.2.0"),
    ],
)
def test_a_server_that_speaks_no_version_in_common_is_named(
    route: str, header: str, remedy: str
) -> None:
    answer = f"HTTP/1.1 200 OK\r\n{header}content-type: application/json\r\ncontent-length: 2"
    with answering(answer.encode() + b"\r\n\r\n{}") as url:
        carrier = HttpCarrier(url)
        with pytest.raises(ProtocolError, match=remedy) as found:
            getattr(carrier, route)(b"{}")
        assert not isinstance(found.value, CarrierError)  # asking again does not help
        carrier.close()


@pytest.mark.parametrize("ask", [lambda c: c.checkpoint(), lambda c: c.sync(b"{}")])
def test_every_message_says_which_versions_are_spoken(ask: Callable[[HttpCarrier], bytes]) -> None:
    with socket.create_server((HOST, 0)) as listener:
        carrier = HttpCarrier(f"http://{HOST}:{listener.getsockname()[1]}", timeout=0.2)
        with pytest.raises(CarrierError):
            ask(carrier)
        connection, _ = listener.accept()
        with connection:
            assert b"expunge-protocols: 1-2\r\n" in connection.recv(65536)
        carrier.close()


def test_connections_are_kept(server: Served, carrier: HttpCarrier) -> None:
    for _ in range(5):
        carrier.checkpoint()
        with pytest.raises(RefusedError):
            carrier.request(b"nonsense")
    pool = carrier._pools.connection_from_url(server.url)
    assert pool.num_connections == 1
    assert pool.num_requests == 10


def test_it_is_safe_in_threads_and_tells_where_the_time_went(server: Served) -> None:
    told: list[dict[str, float]] = []
    carrier = HttpCarrier([server.url], ca=server.ca, timing=told.append)
    clients = [server.site.client(f"thread-{number}") for number in range(12)]
    answers: list[bytes] = []
    requests = [one.request(add=[0]) for one in clients]
    threads = [
        threading.Thread(target=lambda data=data: answers.append(carrier.request(data)))
        for data in requests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    carrier.close()
    assert len(set(answers)) == len(told) == 12
    assert all({"checks", "wait", "solve", "write"} <= set(one) for one in told)
    assert all(0.0 <= value < 60.0 for one in told for value in one.values())


def test_a_refusal_of_a_long_body_is_read_although_it_was_not_taken(
    server: Served, carrier: HttpCarrier
) -> None:
    stranger = HandClient("long-stranger", SigningKey(bytes(32)), server.site.federation, 1)
    with pytest.raises(RefusedError) as refused:
        carrier.request(stranger.request(add=[0]) + bytes(30 << 20))
    assert refused.value.code == "unknown-actor"


# -- trouble ---------------------------------------------------------------------------------------


def test_another_authority_is_not_trusted(server: Served, tmp_path: Path) -> None:
    other = make_tls(tmp_path / "other", [HOST]).ca_text
    for ca in (other, ""):
        with pytest.raises(CarrierError, match=r"cannot be trusted.*Nothing was sent"):
            HttpCarrier(server.url, ca=ca).federation()


def test_another_name_is_not_trusted(tmp_path: Path) -> None:
    with (
        served(tmp_path, names=["expunge.example.org"]) as other,
        pytest.raises(CarrierError, match="cannot be trusted"),
    ):
        HttpCarrier(other.url, ca=other.ca).federation()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{}",
            "closed the connection",
        ),
        (
            (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: "
                b"chunked\r\n\r\n5\r\n{}"
            ),
            "closed the connection",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
            "something else than an Expunge server",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
        (
            (
                b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/\r\nContent-Length: "
                b"0\r\n\r\n"
            ),
            "elsewhere.example",
        ),
        (
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\nbad",
            "overloaded or not running",
        ),
        (
            (
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: "
                b"3\r\n\r\nbad"
            ),
            "overloaded or not running",
        ),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (
            (
                b"HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: "
                b'14\r\n\r\n{"code":"gone"'
            ),
            "status 400",
        ),
        (
            (
                b"HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: "
                b'15\r\n\r\n{"code":"gone"}'
            ),
            "status 400",
        ),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "something else"),
        (b"SSH-2.0-OpenSSH\r\n", "closed the connection"),
    ],
)
def test_an_answer_that_is_not_the_servers_leaves_it_open_what_happened(
    answer: bytes, words: str
) -> None:
    with answering(answer) as url:
        carrier = HttpCarrier(url, timeout=5.0)
        with pytest.raises(CarrierError, match=words):
            carrier.sync(b"{}")
        carrier.close()


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"nonsense", b'["zz"]', b'["A"]'])
def test_proofs_that_are_no_proofs_are_asked_for_again(body: bytes) -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )
    with answering(answer, answer) as url:
        carrier = HttpCarrier(url, timeout=5.0)
        with pytest.raises(CarrierError, match="ask again"):
            carrier.inclusion(0, 1)
        carrier.close()  # each answer on a connection of its own
        with pytest.raises(CarrierError, match="ask again"):
            carrier.entries(0, 1)
        carrier.close()


def test_no_answer_in_time() -> None:
    with socket.create_server((HOST, 0)) as listener:
        carrier = HttpCarrier(f"http://{HOST}:{listener.getsockname()[1]}", timeout=0.2)
        with pytest.raises(CarrierError, match="did not answer in time"):
            carrier.federation()
        with pytest.raises(CarrierError, match="did not answer in time"):
            carrier.request(bytes(50 << 20))  # what is sent is not taken either
        carrier.close()


def test_nobody_there_and_an_unknown_name() -> None:
    with pytest.raises(CarrierError, match=r"refuses connections.*Nothing was sent"):
        HttpCarrier(f"https://{HOST}:{closed_port()}").federation()
    with pytest.raises(CarrierError, match=r"is not known by that name.*Nothing was sent"):
        HttpCarrier("https://expunge.invalid").federation()


def test_not_tls_at_all() -> None:
    with (
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url,
        pytest.raises(CarrierError, match="does not speak TLS"),
    ):
        HttpCarrier(url.replace("http:", "https:")).federation()


def test_the_next_address_is_tried_and_remembered(server: Served) -> None:
    dead = f"https://{HOST}:{closed_port()}"
    carrier = HttpCarrier([dead, server.url], ca=server.ca)
    client = server.site.client("second-choice")
    assert Envelope.from_bytes(carrier.request(client.request(add=[0])), "receipt")
    assert carrier._last == 1
    carrier.close()
    lost = HttpCarrier([dead, dead + "/prefix"])
    with pytest.raises(CarrierError, match=r"refuses connections.*; .*prefix refuses connections"):
        lost.federation()


def test_a_refusal_is_final_at_any_address(server: Served) -> None:
    with answering() as unused:
        carrier = HttpCarrier([server.url, unused], ca=server.ca)
        with pytest.raises(RefusedError):
            carrier.request(b"nonsense")
        carrier.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "expunge.example.org",
        "ftp://expunge.example.org",
        "https://",
        "https://x:99999",
        "https://user@x",
        "https://x?y",
        "http://expunge.example.org",
        "http://192.0.2.1:80",
    ],
)
def test_addresses_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(FormatError):
        HttpCarrier(url)


def test_no_address_and_no_authority_are_refused() -> None:
    with pytest.raises(FormatError, match="no address"):
        HttpCarrier([])
    with pytest.raises(FormatError, match="no certificate in PEM"):
        HttpCarrier("https://x", ca="nonsense")


@pytest.mark.parametrize(
    ("library", "module", "extra"),
    [
        ("urllib3", "transport.http", "http"),
        ("uvicorn", "server.http.run", "server"),
        *(
            ("flwr", f"transport.flower.{name}", "flower")
            for name in ("client_app", "inprocess", "records", "server_app")
        ),
    ],
)
def test_a_missing_library_is_named(library: str, module: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{library!r}] = None
from expunge.errors import MissingExtraError
try:
    import expunge.{module}
except MissingExtraError as problem:
    assert "pip install 'expunge[{extra}]'" in str(problem), problem
else:
    raise SystemExit("it was not missed")
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own words
