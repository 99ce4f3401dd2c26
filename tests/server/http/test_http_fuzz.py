"""Whatever is posted: a refusal that says why, never an error of the server's own, and nothing
changes.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from expunge.crypto import Envelope, SigningKey, canonical
from expunge.crypto.envelope import payload_type, preauthentication
from support.https_server import HandClient, Served, asked, served

PATHS = ("/v1/requests", "/v1/enrolments", "/v1/sync", "/v1/commands")
KINDS = ("enrolment", "question", "command")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fuzz"), requests_per_minute=0) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Served) -> HandClient:
    return server.site.client("fuzzed")


@pytest.fixture(scope="module")
def connection(server: Served) -> Iterator[http.client.HTTPSConnection]:
    one = server.connect()
    yield one
    one.close()


def refused(
    server: Served, connection: http.client.HTTPSConnection, path: str, body: bytes
) -> None:
    before = server.site.standing()
    answer = asked(connection, "POST", path, body)
    assert 400 <= answer.status < 500, answer
    assert set(json.loads(answer.data)) == {"code", "details", "reason"}
    assert server.site.standing() == before


@given(st.sampled_from(PATHS), st.binary(max_size=300))
@example("/v1/requests", b"expunge\x00request\x00\x01\x00\x00\x00\x00" + bytes(64))
@example("/v1/requests", b"expunge\x00request\x00\x01\xff\xff\xff\xff")
@example("/v1/sync", b"[" * 5000)
@example("/v1/sync", b"1" * 5000)
@settings(max_examples=150)
def test_random_bytes(
    server: Served, connection: http.client.HTTPSConnection, path: str, body: bytes
) -> None:
    refused(server, connection, path, body)


@given(st.data(), st.integers(0, 3))
@settings(max_examples=150)
def test_good_requests_with_some_bytes_altered(
    server: Served,
    client: HandClient,
    connection: http.client.HTTPSConnection,
    data: st.DataObject,
    cuts: int,
) -> None:
    body = bytearray(client.request(add=[0, 1], sequence=1))
    for place in data.draw(st.sets(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[place] ^= data.draw(st.integers(1, 255))
    refused(server, connection, "/v1/requests", bytes(body[: len(body) - cuts]))


texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(KINDS),
    st.sampled_from(PATHS),
    st.dictionaries(st.sampled_from("abc"), values) | values,
)
def test_signed_nonsense(
    server: Served, connection: http.client.HTTPSConnection, kind: str, path: str, content: object
) -> None:
    refused(
        server, connection, path, Envelope.signed(kind, content, SigningKey(bytes(32))).to_bytes()
    )


NAMES = {
    "enrolment": ("federation", "key", "name", "spec", "token"),
    "question": ("actor", "federation", "nonce", "sequence", "size"),
    "command": ("action", "actor", "arguments", "federation", "nonce", "sequence"),
}


@given(st.data(), st.sampled_from(KINDS))
@settings(max_examples=100)
def test_envelopes_with_one_value_replaced(
    server: Served,
    client: HandClient,
    connection: http.client.HTTPSConnection,
    data: st.DataObject,
    kind: str,
) -> None:
    """Signed by the one whose name stands in it, so that the values themselves are looked at."""
    good, key, path = {
        "enrolment": (client.enrolment("ab" * 32), client.key, "/v1/enrolments"),
        "question": (client.question(), client.key, "/v1/sync"),
        "command": (server.site.ask("show-order", order="x"), server.site.operator, "/v1/commands"),
    }[kind]
    content = Envelope.from_bytes(good, kind).unverified()
    name = data.draw(st.sampled_from(NAMES[kind]))
    value = data.draw(values.filter(lambda one: one != content[name]))
    if (kind, name) == ("question", "size") or (kind, name) == ("question", "sequence"):
        value = data.draw(
            st.text(max_size=5) | st.integers(-100, -1) | st.none()
        )  # any number would do
    if (kind, name) == ("command", "sequence") and value == server.site.number + 1:
        value = -1
    body = Envelope.signed(kind, {**content, name: value}, key).to_bytes()
    refused(server, connection, path, body)


QUESTIONS = ("show-order", "bundle", "show-audit")
COMMANDS = ("token", "amend", "forget-client", "backup", "order", "close-order")


@given(
    st.sampled_from(QUESTIONS + COMMANDS),
    st.dictionaries(
        st.sampled_from(
            (
                "order",
                "audit",
                "name",
                "role",
                "secret",
                "days",
                "client",
                "subject",
                "subjects",
                "gamma",
                "labels",
                "x",
            )
        ),
        values,
        max_size=4,
    ),
)
@settings(max_examples=100)
def test_arguments_of_commands(
    server: Served,
    connection: http.client.HTTPSConnection,
    action: str,
    arguments: dict[str, object],
) -> None:
    """An operator may ask for anything; it is refused, or it is done, and never breaks the
    server.
    """
    arguments = {
        name: value
        for name, value in arguments.items()
        if not (action == "backup" and name == "name")
    }
    number = 0 if action in QUESTIONS else server.site.number + 1
    answer = asked(connection, "POST", "/v1/commands", server.site.ask(action, number, **arguments))
    assert answer.status < 500, (action, arguments, answer)
    if answer.status == 200 and number:
        server.site.number = number


@pytest.mark.parametrize(
    ("action", "name"), [("show-order", "order"), ("order", "subject"), ("close-order", "order")]
)
def test_texts_that_are_no_unicode_are_refused(server: Served, action: str, name: str) -> None:
    site, number = server.site, 0 if action in QUESTIONS else server.site.number + 1
    whole = Envelope.from_bytes(site.ask(action, number, **{name: "half"}), "command")
    payload = whole.payload.replace(b'"half"', b'"\\ud800"')
    signature = site.operator.sign(preauthentication(payload_type("command"), payload))
    half = Envelope("command", payload, ((site.operator.public.id, signature),))
    answer = server.ask("POST", "/v1/commands", half.to_bytes())
    assert answer.status == 400
    assert b"surrogate" in answer.data


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc", "Zs"]), max_size=30))
def test_any_path(server: Served, connection: http.client.HTTPSConnection, path: str) -> None:
    answer = asked(connection, "GET", f"/v1/log/{path}")
    assert answer.status in (200, 400, 404, 405)


def test_the_fuzzed_client_is_as_good_as_ever(server: Served, client: HandClient) -> None:
    canonical.decode(server.ask("POST", "/v1/sync", client.question()).data)
