"""Versions of the protocol: who has none in common is told which of the two to upgrade."""

from __future__ import annotations

import pytest

from expunge.errors import RefusedError
from expunge.wire.protocol import (
    BY_CLIENTS,
    BY_SERVERS,
    FIRST,
    Window,
    problem_with_server,
    require_client,
    sender,
    window_of,
)


@pytest.mark.parametrize("text", ["", "2", "0-1", "2-1", "1-", "a-b", "1-2-3", "-1-2", "1-9999999"])
def test_what_says_no_window_is_none(text: str) -> None:
    assert window_of(text) is None


def test_a_window_is_read_as_it_is_said() -> None:
    for window in (FIRST, BY_CLIENTS, BY_SERVERS, Window(3, 12)):
        assert window_of(str(window)) == window


def test_two_that_share_a_version_have_no_problem() -> None:
    require_client(BY_CLIENTS)
    require_client(None)  # whoever does not say is taken at its word
    for server in (FIRST, BY_SERVERS, Window(2, 9)):
        assert problem_with_server(server) == ""


def test_the_one_that_is_behind_is_named_with_what_it_needs() -> None:
    with pytest.raises(RefusedError, match=r"at least Expunge 0\.2\.0") as found:
        require_client(FIRST)
    assert found.value.code == "wrong-protocol"
    with pytest.raises(RefusedError, match="upgrade this server to at least a release that speaks"):
        require_client(Window(7, 9))
    assert "upgrade this client to at least a release" in problem_with_server(Window(7, 9))
    assert "upgrade the server to at least Expunge 0.2.0" in problem_with_server(
        FIRST, Window(2, 3)
    )


def test_the_first_version_is_known_by_its_agent() -> None:
    asks, sends = sender(None, "expunge", "GET"), sender(None, "python-urllib3/2.2.3", "POST")
    assert asks == sends == FIRST
    assert sender(None, "python-urllib3/2.2.3", "GET") is None  # whose script only reads
    assert sender(None, "curl/8", "POST") is None
    assert sender("1-2", "expunge", "POST") == Window(1, 2)
    assert sender("nonsense", "expunge", "POST") is None
