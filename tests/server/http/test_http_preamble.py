"""Who speaks, read from the first bytes: the same that the protocol's own reader finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.crypto import SigningKey
from expunge.errors import RefusedError
from expunge.server.http import preamble
from expunge.wire import request
from support.https_server import HandClient, site


def test_the_beginning_of_a_request_says_what_the_whole_says() -> None:
    client = HandClient("clinic", SigningKey(bytes(32)), "ab" * 16, 3)
    data = client.request(add=[0, 1, 2], sequence=7)
    whole = request.read(data)
    size = preamble.size_of("request", data)
    found = preamble.of_message("request", data[:size])
    assert (found.federation, found.actor, found.sequence) == ("ab" * 16, "clinic", 7)
    assert (found.header, found.signature) == (whole.header_bytes, whole.signature)
    assert preamble.of_message("request", memoryview(data)) == found
    assert preamble.size_of("request", data[:5]) == 21
    for end in (0, 20, 21, size - 1):
        with pytest.raises(RefusedError) as refused:
            preamble.of_message("request", data[:end])
        assert refused.value.code == "malformed"


def test_it_is_believed_only_if_signed(tmp_path: Path) -> None:
    with site(tmp_path / "server") as place:
        client = place.client("clinic")
        preamble.of_message("request", client.request(add=[0])).verify(place.service.core)
        cases = [
            (HandClient("clinic", SigningKey(bytes(32)), place.federation, 1), "bad-signature"),
            (HandClient("nobody", client.key, place.federation, 1), "unknown-actor"),
            (HandClient("operator", place.operator, place.federation, 1), "not-allowed"),
            (HandClient("clinic", client.key, "0" * 32, 1), "wrong-federation"),
        ]
        for one, code in cases:
            with pytest.raises(RefusedError) as refused:
                preamble.of_message("request", one.request(add=[0])).verify(place.service.core)
            assert refused.value.code == code


@pytest.mark.parametrize("header", [b"", b"{}", b"[]", b"\xff", b'{"client":1}'])
def test_headers_that_say_nothing_are_refused(header: bytes) -> None:
    data = b"expunge\x00request\x00\x01" + len(header).to_bytes(4, "little") + header + bytes(64)
    with pytest.raises(RefusedError) as refused:
        preamble.of_message("request", data)
    assert refused.value.code == "malformed"
