"""Peers: keys come from the whole log, one for each name for ever, or from pins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from expunge.client.settings import pins_text, read_pins
from expunge.client.trust import Peers, trusted
from expunge.crypto import SigningKey, canonical
from expunge.errors import EvidenceError, FormatError, InputError
from expunge.evidence.log import Frontier, make_entry
from support.evidence import aggregated, changed

TIME = "2026-11-15T09:30:00Z"
KEYS = {
    name: SigningKey(bytes([number]) * 32).public.text
    for number, name in enumerate(("a", "b", "c", "other"), start=1)
}
D = "0" * 64


def enrolled(name: str, key: str | None = None, role: str = "client") -> bytes:
    return make_entry("enrolled", TIME, name=name, role=role, key=key or KEYS[name])


def forgotten(name: str) -> bytes:
    return make_entry(
        "forgotten", TIME, client=name, count=1, ledger_before=D, ledger_after=D, head=""
    )


def believe(entry: dict[str, Any], keys: Mapping[str, str]) -> None:
    """Whatever the log says."""


def read(log: list[bytes], known: Peers | None = None, root: bytes | None = None) -> Peers:
    at_most_two = lambda start, end: log[start : min(end, start + 2)]  # noqa: E731 - a server may answer with fewer
    return (known or Peers()).read_on(
        at_most_two, len(log), root or Frontier().extended(log).root, believe
    )


def summed_up(**sequences: int) -> bytes:
    return make_entry("aggregated", TIME, **aggregated(**sequences))


def answered(client: str, sequence: int) -> bytes:
    """A request that changes no samples, and needs no round."""
    return make_entry("changed", TIME, **changed(client, sequence, message="none"))


def test_no_number_is_in_a_sum_after_a_later_one() -> None:
    begin = [enrolled("a"), enrolled("b"), summed_up(a=1, b=1), summed_up(a=2)]
    assert read(begin).applied == {"a": 2, "b": 1}
    for again in (1, 2):
        with pytest.raises(EvidenceError, match=f"request {again} of a after a later one"):
            read([*begin, summed_up(a=again, b=2)])


def test_requests_without_a_round_use_up_numbers_too() -> None:
    """A client that has stored what an earlier version looked for reads the log again."""
    log = [enrolled("a"), enrolled("b"), summed_up(a=1, b=1), answered("a", 2)]
    assert read(log).applied == {"a": 2, "b": 1}
    with pytest.raises(EvidenceError, match="request 2 of a after a later one"):
        read([*log, summed_up(a=2)])
    older = canonical.decode(read(log).to_text().encode())
    del older["version"]
    assert Peers.from_text(canonical.encode(older).decode()) == Peers(keys=read(log).keys)


def founded(spec: str) -> bytes:
    key = SigningKey(bytes(32)).public
    return make_entry(
        "founded",
        TIME,
        federation="f" * 32,
        key=key.text,
        server=key.id,
        solver="woodbury",
        spec=spec,
    )


def amended(before: str, after: str) -> bytes:
    changed = {"spec_before": before, "spec_after": after, "ledger": D, "head": ""}
    return make_entry("amended", TIME, actor="operator", **changed)


def test_the_spec_is_what_the_log_shows_and_amendments_follow_one_another() -> None:
    first, second, third = ("1" * 64, "2" * 64, "3" * 64)
    log = [founded(first), enrolled("a"), amended(first, second), amended(second, third)]
    known = read(log[:2])
    assert known.spec == first
    assert Peers.from_text(known.to_text()) == known
    assert read(log, known).spec == read(log).spec == third
    for wrong in (amended(first, third), amended(third, first)):
        with pytest.raises(EvidenceError, match="amendment of another spec than the one before"):
            read([*log[:3], wrong])
    with pytest.raises(EvidenceError, match="founded twice"):
        read([*log, founded(first)])


def test_all_clients_are_learnt_and_nobody_else() -> None:
    peers = read(
        [
            enrolled("a"),
            enrolled("other", role="officer"),
            enrolled("b"),
            enrolled("c"),
            forgotten("b"),
        ]
    )
    assert dict(peers.keys) == {name: KEYS[name] for name in "abc"}
    assert peers.active == {"a", "c"}


def test_reading_on_is_reading_all() -> None:
    log = [enrolled("a"), enrolled("b"), enrolled("c")]
    assert read(log, read(log[:1])) == read(log)
    assert Peers.from_text(read(log).to_text()) == read(log)
    assert Peers.from_text(None) == Peers()


def test_entries_of_another_log_are_refused() -> None:
    with pytest.raises(EvidenceError, match="root is another"):
        read(
            [enrolled("a"), enrolled("b")],
            root=Frontier().extended([enrolled("a"), enrolled("c")]).root,
        )


def test_entries_that_are_kept_back_are_noticed() -> None:
    with pytest.raises(EvidenceError, match="does not show the entries"):
        Peers().read_on(lambda _start, _end: [], 3, b"\0" * 32, believe)


def test_a_name_has_one_key_for_ever() -> None:
    with pytest.raises(EvidenceError, match="enrols a twice"):
        read([enrolled("a"), enrolled("b"), enrolled("a", KEYS["other"])])


def test_a_log_that_was_lost_in_part_must_show_the_same_keys() -> None:
    known = read([enrolled("a"), enrolled("b"), enrolled("c")])
    assert read([enrolled("a")], known).active == {"a"}
    with pytest.raises(EvidenceError, match="no longer shows the key that a enrolled"):
        read([enrolled("a", KEYS["other"])], known)


def test_a_log_that_was_lost_in_part_and_has_grown_since_is_read_anew() -> None:
    known = read([enrolled("a"), enrolled("b"), enrolled("c")])
    for more in ([enrolled("other")], [enrolled("other"), forgotten("b"), forgotten("a")]):
        log = [enrolled("a"), enrolled("b"), *more]
        assert read(log, known) == read(log)
    with pytest.raises(EvidenceError, match="root is another"):
        read([enrolled("a"), enrolled("b"), enrolled("other")], known, root=b"\0" * 32)


def test_what_was_lost_may_contradict_what_has_come_since() -> None:
    """A client left, or labels were amended, and after the restore so it was again."""
    begin = [founded("1" * 64), enrolled("a"), enrolled("b")]
    lost = [forgotten("b"), amended("1" * 64, "2" * 64)]
    since = [answered("a", 1), answered("a", 2), answered("b", 1), amended("1" * 64, "2" * 64)]
    for gone in (lost, lost[:1], lost[1:]):
        assert read([*begin, *since], read([*begin, *gone])) == read([*begin, *since])
    with pytest.raises(EvidenceError, match="again after it had left"):
        read([*begin, lost[0], answered("b", 1)], read([*begin, lost[0]]))


def test_those_who_are_gone_are_known() -> None:
    assert read([enrolled("a"), enrolled("b"), forgotten("b")]).gone == {"b"}


def test_after_a_restore_clients_are_away_until_they_are_heard_of() -> None:
    restored = make_entry("restored", TIME, size=2, withheld=[])
    again = make_entry(
        "aggregated",
        TIME,
        aggregation="f" * 32,
        clients=[{"client": "b", "sequence": 1, "request": D}],
        added=1,
        deleted=0,
        round=1,
        ledger_before=D,
        ledger_after=D,
        head="",
        spec=D,
        erased_by=TIME,
        generation=1,
    )
    assert read([enrolled("a"), enrolled("b"), restored]).active == set()
    assert read([enrolled("a"), enrolled("b"), restored, again]).active == {"b"}


def test_a_client_is_gone_from_the_command_on_that_forgets_it() -> None:
    command = make_entry(
        "commanded",
        TIME,
        actor="op",
        sequence=1,
        command=D,
        action="forget-client",
        summary={"client": "a", "count": -1},
    )
    assert read([enrolled("a"), enrolled("b"), command]).active == {"b"}


def test_pins_stand_alone_and_must_agree_with_the_log() -> None:
    peers = read([enrolled("a"), enrolled("b")])
    assert set(trusted(peers, {})) == {"a", "b"}
    assert set(trusted(peers, {"a": KEYS["a"]})) == {"a"}
    with pytest.raises(EvidenceError, match="another key for a than the one pinned"):
        trusted(peers, {"a": KEYS["other"]})


def test_pins_are_read_as_they_were_written() -> None:
    pins = {"a": KEYS["a"], "b": KEYS["b"]}
    assert read_pins(pins_text(pins)) == pins
    assert read_pins(None) == read_pins(pins_text({})) == {}
    with pytest.raises(InputError, match="pinned for a is no public key"):
        pins_text({"a": "nonsense"})
    with pytest.raises(FormatError):
        read_pins('{"a":1}')
