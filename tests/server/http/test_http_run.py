"""Serving: refused without TLS, stopped by a signal after what has begun, closed and folded at the
end.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from expunge.errors import ExpungeError, StoreError
from expunge.server.http.run import Listening, _listen, _urls, serve
from expunge.server.http.tls import make_tls
from expunge.server.service import Service
from support.https_server import HOST, asked, found, opened, served, site, trusting

SERVE = """
import sys
from pathlib import Path
from expunge.server.state import Settings
from expunge.server.http.run import serve
from expunge.server.service import Service
folder = Path(sys.argv[1])
service = Service.open(folder / "server", settings=Settings(erase_within=3600), upkeep=False)
serve(service, port=0, certificate=folder / "tls/tls.pem", key=folder / "tls/tls.key",
      ready=lambda listening: print(listening.urls[0], flush=True))
print("ended", flush=True)
"""


def is_closed(service: Service) -> bool:
    """Whether another may open its folder."""
    opened(service.state.folder.path).close()
    return True


def test_plain_http_is_refused_unless_it_is_wanted(tmp_path: Path) -> None:
    found(tmp_path / "server")
    service = opened(tmp_path / "server")
    with pytest.raises(ExpungeError, match="plain HTTP would show enrolment tokens"):
        serve(service, port=0)
    assert is_closed(service)
    service = opened(tmp_path / "server")
    files = make_tls(tmp_path / "tls", ["localhost"])
    with pytest.raises(ExpungeError, match="contradict"):
        serve(service, port=0, certificate=files.certificate, key=files.key, insecure=True)
    service = opened(tmp_path / "server")
    with pytest.raises(StoreError, match="cannot be read"):
        serve(service, port=0, certificate=tmp_path / "none", key=files.key)
    assert is_closed(service)


def test_plain_http_behind_a_proxy(tmp_path: Path) -> None:
    found(tmp_path / "server")
    service, ready = opened(tmp_path / "server"), threading.Event()
    said: list[Listening] = []
    thread = threading.Thread(
        target=lambda: serve(
            service,
            port=0,
            insecure=True,
            trusted_proxies=["127.0.0.1"],
            ready=lambda one: (said.append(one), ready.set()),
        )
    )
    thread.start()
    assert ready.wait(20)
    assert said[0].urls[0].startswith("http://127.0.0.1:")
    connection = http.client.HTTPConnection(
        HOST, int(said[0].urls[0].rpartition(":")[2]), timeout=10
    )
    try:
        assert asked(connection, "GET", "/healthz", x_forwarded_for="192.0.2.9").status == 200
    finally:
        connection.close()
        said[0].stop()
        thread.join(20)
    assert is_closed(service)


def test_who_comes_while_the_journal_is_read_is_told_how_far_that_is(tmp_path: Path) -> None:
    """And the requests that are offered then are offered again."""
    found(tmp_path / "server")
    said: list[Listening] = []
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    answers: list[tuple[int, bytes]] = []

    def open_slowly(progress: Callable[[int, int], None]) -> Service:
        progress(200, 1000)
        connection = http.client.HTTPConnection(HOST, port, timeout=20)
        for method, path in (("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/requests")):
            connection.request(method, path)
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
        return opened(tmp_path / "server")

    def ready(listening: Listening) -> None:
        said.append(listening)
        listening.stop()

    serve(open_slowly, port=port, insecure=True, ready=ready)
    assert len(said) == 1
    assert answers[0] == (200, b'{"live":true}')
    assert (answers[1][0], json.loads(answers[1][1])["ready"]) == (503, False)
    refusal = json.loads(answers[2][1])
    assert (answers[2][0], refusal["code"]) == (503, "storage")
    for text in (json.loads(answers[1][1])["reason"], refusal["reason"]):
        assert "reading the journal, 200 of 1,000" in text


def test_a_server_that_cannot_be_opened_leaves_its_port(tmp_path: Path) -> None:
    def fail(_: Callable[[int, int], None]) -> Service:
        raise StoreError("made to fail")

    with pytest.raises(StoreError, match="made to fail"):
        serve(fail, port=0, insecure=True)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    found(tmp_path / "server")
    service = opened(tmp_path / "server")
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ExpungeError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"
        ):
            serve(service, port=port, insecure=True)
    assert is_closed(service)


def test_every_address_of_a_name_is_listened_on(tmp_path: Path) -> None:
    sockets = _listen("", 0)
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 1
        urls = _urls("", sockets, "https")
        assert len(urls) == len(sockets)
        assert all(url.startswith(("https://0.0.0.0:", "https://[::]:")) for url in urls)
    finally:
        for one in sockets:
            one.close()


def test_an_address_that_is_not_ours_is_refused() -> None:
    for host in ("192.0.2.1", "expunge.invalid"):
        with pytest.raises(ExpungeError, match=f"cannot listen on {host}"):
            _listen(host, 0)


def test_a_family_that_is_not_there_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    there, given = _listen("127.0.0.1", 0), socket.getaddrinfo
    there[0].close()
    elsewhere = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_, **__: [elsewhere, *given(HOST, 0, type=socket.SOCK_STREAM)],
    )
    (one,) = _listen("both", 0)
    assert one.getsockname()[0] == HOST
    one.close()


def start(folder: Path) -> tuple[subprocess.Popen[str], int]:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-W", "error", "-c", textwrap.dedent(SERVE), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, process.communicate()[1]
    return process, int(url.rpartition(":")[2])


def is_ended(connection: ssl.SSLSocket) -> bool:
    try:
        return connection.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_has_begun_finish_and_leaves_nothing_to_erase(
    tmp_path: Path, number: signal.Signals
) -> None:
    with site(tmp_path / "server") as place:
        client = place.client("clinic", 2)
    files = make_tls(tmp_path / "tls", [HOST])
    process, port = start(tmp_path)
    data = client.request(add=[0, 1])
    connection, idle = (
        trusting(files.ca_text).wrap_socket(
            socket.create_connection((HOST, port), timeout=20), server_hostname=HOST
        )
        for _ in range(2)
    )
    with connection, idle:
        head = (
            f"POST /v1/requests HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        connection.sendall(head + data[:100])
        process.send_signal(number)
        assert is_ended(idle)  # who asks nothing is not waited for
        connection.sendall(data[100:])
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended\n", "")
    service = opened(tmp_path / "server")
    try:
        status = service.status()
        assert (status["samples"], status["journal"], status["round"]) == (2, 0, 1)
        assert service.request(data) == answer.partition(b"\r\n\r\n")[2]
    finally:
        service.close()


def test_stopping_waits_for_a_round_that_is_waited_for(tmp_path: Path) -> None:
    answers = []
    with served(tmp_path) as server:
        data = server.site.client("clinic").request(add=[0])
        with server.site.service.state.lock:  # no round ends while this is held
            asking = threading.Thread(
                target=lambda: answers.append(server.ask("POST", "/v1/requests", data).status)
            )
            asking.start()
            while b"expunge_http_requests_under_way 2.0" not in server.ask("GET", "/metrics").data:
                pass
            server.listening.stop()
            asking.join(0.3)
            assert asking.is_alive()
        asking.join(20)
    assert answers == [200]
