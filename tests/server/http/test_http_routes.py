"""Every route over HTTPS, with the answers that the service itself gives; refusals change
nothing.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator

import pytest

from expunge.crypto import Envelope, SigningKey
from expunge.errors import RefusedError
from expunge.evidence import Receipt, published_head
from expunge.evidence.log import Checkpoint, read_entry
from expunge.evidence.merkle import leaf_hash, verify_consistency, verify_inclusion
from expunge.wire import payloads
from expunge.wire.refusals import body_of, headers_of, status_of
from support.https_server import HandClient, Served, asked, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("routes")) as one:
        yield one


def server_key(server: Served):
    return server.site.service.state.folder.key.public


def test_a_client_enrols_adds_deletes_and_syncs(server: Served) -> None:
    name = "enrolling"
    client = HandClient(name, SigningKey(bytes(31) + b"\x01"), server.site.federation, 8)
    enrolment = client.enrolment(server.site.token(name))
    first = server.ask("POST", "/v1/enrolments", enrolment)
    assert first.status == 200
    assert first.headers["content-type"] == "application/json"
    assert payloads.open_verified("enrolled", first.data, server_key(server))["name"] == name
    again = payloads.open_verified(
        "enrolled", server.ask("POST", "/v1/enrolments", enrolment).data, server_key(server)
    )
    assert again["name"] == name

    data = client.request(add=range(5))
    answer = server.ask("POST", "/v1/requests", data)
    assert answer.status == 200
    receipt = Receipt.read(Envelope.from_bytes(answer.data, "receipt"), server_key(server))
    assert receipt.logged.entry["client"] == name
    assert server.ask("POST", "/v1/requests", data).data == answer.data
    assert {
        piece.split(";")[0].strip() for piece in answer.headers["server-timing"].split(",")
    } >= {"checks", "solve", "write"}
    assert server.ask("POST", "/v1/requests", client.request(delete=[2])).status == 200

    synced = server.ask("POST", "/v1/sync", client.question())
    assert payloads.open_verified("answer", synced.data, server_key(server))["sequence"] == 2


def test_commands_and_questions_take_one_route(server: Served) -> None:
    question = server.ask("POST", "/v1/commands", server.site.ask("status"))
    assert (
        Envelope.from_bytes(question.data, "result").verify(server_key(server))["result"]["value"][
            "solver"
        ]
        == "woodbury"
    )
    number = server.site.number + 1
    command = server.site.ask("audit", number)
    first = server.ask("POST", "/v1/commands", command)
    assert first.status == 200
    assert server.ask("POST", "/v1/commands", command).data == first.data
    server.site.number = number


def test_federation_checkpoint_and_proofs_are_those_of_the_service(server: Served) -> None:
    service = server.site.service
    content = payloads.open_verified(
        "federation", server.ask("GET", "/v1/federation").data, server_key(server)
    )
    assert content["federation"] == server.site.federation
    signed = Envelope.from_bytes(server.ask("GET", "/v1/checkpoint").data, "checkpoint").verify(
        server_key(server)
    )
    checkpoint = Checkpoint.from_json(signed)
    entries = [
        base64.b64decode(text)
        for text in json.loads(server.ask("GET", "/v1/log/entries?start=0&end=1000").data)
    ]
    assert entries == service.entries(0, 1000)
    assert read_entry(entries[0])["kind"] == "founded"
    index = checkpoint.size - 1
    path = json.loads(
        server.ask("GET", f"/v1/log/inclusion?index={index}&size={checkpoint.size}").data
    )
    verify_inclusion(
        leaf_hash(entries[index]),
        index,
        checkpoint.size,
        [bytes.fromhex(one) for one in path],
        checkpoint.root,
    )
    proof = json.loads(
        server.ask("GET", f"/v1/log/consistency?first=1&second={checkpoint.size}").data
    )
    verify_consistency(
        1,
        leaf_hash(entries[0]),
        checkpoint.size,
        checkpoint.root,
        [bytes.fromhex(one) for one in proof],
    )


def test_the_head_has_its_digest_as_etag(server: Served) -> None:
    first = server.ask("GET", "/v1/head")
    digest = server.site.service.head_digest()
    head, _ = published_head.read(first.data, server_key(server))
    assert head.digest == digest
    assert first.headers["etag"] == f'W/"{digest}"'
    for known in (f'"{digest}"', f'W/"{digest}"', f'"{"0" * 64}", "{digest}"', "*"):
        same = server.ask("GET", "/v1/head", if_none_match=known)
        assert (same.status, same.data, same.headers["etag"]) == (304, b"", first.headers["etag"])
    other = server.ask("GET", "/v1/head", if_none_match=f'"{"0" * 64}"')
    assert (other.status, other.data) == (200, first.data)
    bare = server.ask("HEAD", "/v1/head")
    assert (bare.status, bare.data, bare.headers["etag"]) == (200, b"", first.headers["etag"])
    assert bare.headers["content-length"] == str(len(first.data))
    assert server.ask("HEAD", "/v1/head", if_none_match=first.headers["etag"]).status == 304


def test_the_etag_changes_with_the_head(server: Served) -> None:
    before = server.ask("HEAD", "/v1/head").headers["etag"]
    client = server.site.client("changing")
    assert server.ask("POST", "/v1/requests", client.request(add=[0])).status == 200
    after = server.ask("GET", "/v1/head", if_none_match=before)
    assert after.status == 200
    assert after.headers["etag"] != before


def test_health_readiness_and_metrics(server: Served) -> None:
    assert json.loads(server.ask("GET", "/healthz").data) == {"live": True}
    assert json.loads(server.ask("GET", "/readyz").data) == {"ready": True, "reason": ""}
    metrics = server.ask("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f"expunge_samples {server.site.service.status()['samples']}.0".encode() in metrics.data


def test_a_store_that_does_not_answer_is_not_ready(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = server.site.service.state.storage.database
    rows = database.rows
    with monkeypatch.context() as patched:
        patched.setattr(database, "rows", lambda *_: rows("SELECT * FROM a_damaged_table"))
        ready = server.ask("GET", "/readyz")
        assert (ready.status, json.loads(ready.data)) == (
            503,
            {"ready": False, "reason": "the store does not answer"},
        )
        assert server.ask("GET", "/healthz").status == 200
        refused = server.ask("GET", "/v1/checkpoint")
        assert (refused.status, json.loads(refused.data)["code"]) == (503, "storage")
        assert int(refused.headers["retry-after"]) >= 1
        assert b"expunge_store_answers 0.0" in server.ask("GET", "/metrics").data
    assert server.ask("GET", "/readyz").status == 200


def test_each_refusal_has_its_status_and_changes_nothing(server: Served) -> None:
    client, stranger = (
        server.site.client("refused"),
        HandClient("stranger", SigningKey(bytes(32)), server.site.federation, 2),
    )
    impostor = HandClient(client.name, SigningKey(bytes(32)), server.site.federation, 2)
    lost = HandClient(client.name, client.key, "0" * 32, 2)
    assert server.ask("POST", "/v1/requests", client.request(add=[0, 1])).status == 200
    before = server.site.standing()
    cases = [
        ("/v1/requests", b"no request", 400, "malformed"),
        ("/v1/requests", b"", 400, "malformed"),
        ("/v1/requests", client.request(delete=[0], sequence=2)[:-1], 400, "malformed"),
        ("/v1/requests", stranger.request(add=[0]), 403, "unknown-actor"),
        ("/v1/requests", impostor.request(add=[0]), 403, "bad-signature"),
        ("/v1/requests", lost.request(add=[0]), 422, "wrong-federation"),
        ("/v1/requests", client.request(add=[2], sequence=7), 409, "sequence-gap"),
        ("/v1/requests", client.request(add=[2], sequence=1), 409, "sequence-reused"),
        ("/v1/requests", client.request(delete=[5], sequence=2), 422, "not-live"),
        ("/v1/requests", client.request(add=[0], sequence=2), 422, "already-live"),
        ("/v1/enrolments", stranger.enrolment("ab" * 32), 403, "bad-token"),
        ("/v1/enrolments", client.enrolment("ab" * 32), 409, "name-taken"),
        ("/v1/enrolments", b"{}", 400, "malformed"),
        ("/v1/sync", stranger.question(), 403, "unknown-actor"),
        ("/v1/sync", impostor.question(), 403, "bad-signature"),
        ("/v1/commands", server.site.ask("dance"), 422, "unknown-action"),
        ("/v1/commands", server.site.ask("show-order", order="none"), 422, "unknown-order"),
        ("/v1/commands", server.site.ask("audit", 99), 409, "sequence-gap"),
        ("/v1/commands", b"[]", 400, "malformed"),
    ]
    for path, body, status, code in cases:
        answer = server.ask("POST", path, body)
        told = json.loads(answer.data)
        assert (answer.status, told["code"]) == (status, code), (path, told)
        assert set(told) == {"code", "details", "reason"}
        assert answer.headers["content-type"] == "application/json"
    gap = json.loads(server.ask("POST", "/v1/requests", client.request(add=[2], sequence=7)).data)
    assert gap["details"] == {"expected": 2}
    assert server.site.standing() == before
    client.sequence = 1
    assert server.ask("POST", "/v1/requests", client.request(delete=[0])).status == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/log/entries", 400, "malformed"),
        ("/v1/log/entries?start=a&end=b", 400, "malformed"),
        ("/v1/log/entries?start=3&end=1", 400, "malformed"),
        (f"/v1/log/entries?start=0&end={1 << 53}", 400, "malformed"),
        ("/v1/log/entries?start=-1&end=1", 400, "malformed"),
        (f"/v1/log/inclusion?index={(1 << 53) - 1}&size={(1 << 53) - 1}", 404, "not-found"),
        ("/v1/log/inclusion?index=0&size=100000", 404, "not-found"),
        ("/v1/log/consistency?first=9&second=8", 404, "not-found"),
        ("/v1/nothing", 404, "not-found"),
        ("/v1/head/", 404, "not-found"),
        ("/docs", 404, "not-found"),
        ("/v1/requests", 405, "malformed"),
    ],
)
def test_what_cannot_be_fetched_is_refused(
    server: Served, path: str, status: int, code: str
) -> None:
    answer = server.ask("GET", path)
    assert (answer.status, json.loads(answer.data)["code"]) == (status, code)


def test_a_connection_is_kept_through_refusals(server: Served) -> None:
    connection = server.connect()
    try:
        asked(connection, "GET", "/healthz")
        kept = connection.sock
        for _ in range(3):
            assert asked(connection, "POST", "/v1/requests", b"nonsense").status == 400
            assert asked(connection, "GET", "/healthz").status == 200
        assert connection.sock is kept
    finally:
        connection.close()


def test_many_clients_wait_for_shared_rounds_without_a_thread_each(server: Served) -> None:
    service, clients = (
        server.site.service,
        [server.site.client(f"crowd-{number}", 2) for number in range(50)],
    )
    before, answers = service.status()["round"], {}
    threads = []
    with service.state.lock:  # nothing is applied while this is held
        for client in clients:
            data = client.request(add=[0, 1])
            thread = threading.Thread(
                target=lambda name=client.name, data=data: answers.update(
                    {name: server.ask("POST", "/v1/requests", data).status}
                )
            )
            thread.start()
            threads.append(thread)
        deadline = time.monotonic() + 30
        while service.status()["waiting"] < 45 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.ask("GET", "/healthz").status == 200
    for thread in threads:
        thread.join(30)
    assert answers == {client.name: 200 for client in clients}
    assert service.status()["round"] - before <= 3


def test_refusals_say_when_to_come_back_only_if_that_helps() -> None:
    assert status_of("something-new") == 422
    assert "retry-after" not in headers_of(RefusedError("malformed", "no"))
    assert headers_of(RefusedError("storage", "no"))["retry-after"] == "1"
    assert headers_of(RefusedError("too-many", "no", retry_after=2.1))["retry-after"] == "3"
    assert json.loads(body_of(RefusedError("gone", "ümlaut \ud800", a=1))) == {
        "code": "gone",
        "details": {"a": 1},
        "reason": "ümlaut \ud800",
    }
