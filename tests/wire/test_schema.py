"""What fields may say is written once, and checked by one vocabulary."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import expunge
from expunge import kinds
from expunge.errors import FormatError
from expunge.evidence.log import ENTRY_KINDS, EntryKind
from expunge.kinds import MESSAGES
from expunge.secagg.messages import CLIENT_MESSAGES, SERVER_MESSAGES, ClientKind, ServerKind
from expunge.wire import payloads, schema

SOURCE = Path(expunge.__file__).parent
LISTS: dict[str, tuple[str, ...]] = {
    "kinds of messages": MESSAGES,
    "kinds of requests": kinds.REQUEST_KINDS,
    "kinds of changes": get_args(kinds.ChangeKind),
    "roles": kinds.ROLES,
    "statuses of clients": kinds.CLIENT_STATUSES,
    "states of orders": kinds.ORDER_STATES,
    "states of orders in bundles": kinds.BUNDLED_STATES,
    "states of audits": get_args(kinds.AuditState),
    "states of peers": kinds.PEER_STATES,
    "states of samples": get_args(kinds.SampleState),
    "purposes of rounds": kinds.PURPOSES,
    "phases": kinds.PHASES,
    "phases as answered": kinds.ANSWERED_PHASES,
    "stages of a participant": kinds.STAGES,
    "messages of clients": get_args(ClientKind),
    "messages of the server": get_args(ServerKind),
    "entries of the log": get_args(EntryKind),
    "payloads": get_args(payloads.Kind),
}


def written() -> list[frozenset[str]]:
    """Every tuple, list and set of at least three texts that stands in the source."""
    found = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) >= 3:
                texts = [part.value for part in node.elts if isinstance(part, ast.Constant)]
                if len(texts) == len(node.elts) and all(isinstance(one, str) for one in texts):
                    found.append(frozenset(map(str, texts)))
    return found


def test_each_list_is_written_once() -> None:
    """Those that are made of another (`Literal[OpenKind, "masked"]`) are not written at all."""
    everything = written()
    twice = [name for name, values in LISTS.items() if everything.count(frozenset(values)) > 1]
    assert not twice
    for name in ("roles", "statuses of clients", "phases", "entries of the log", "payloads"):
        assert everything.count(frozenset(LISTS[name])) == 1, name


def test_lists_name_nothing_twice_and_tables_have_all_of_them() -> None:
    for name, values in LISTS.items():
        assert len(set(values)) == len(values) > 1, name
    assert set(ENTRY_KINDS) == set(get_args(EntryKind))
    assert set(CLIENT_MESSAGES) == set(get_args(ClientKind))
    assert set(SERVER_MESSAGES) == set(get_args(ServerKind))
    assert set(kinds.REQUEST_KINDS) == {*MESSAGES, "none"} - {"masked"}
    assert set(kinds.BUNDLED_STATES) < set(kinds.ORDER_STATES)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("phase", kinds.ANSWERED_PHASES),
        ("purpose", kinds.PURPOSES),
        ("status", kinds.CLIENT_STATUSES),
        ("message", kinds.REQUEST_KINDS),
    ],
)
def test_what_a_field_may_say_is_documented(field: str, values: tuple[str, ...]) -> None:
    protocol = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    listed = re.search(rf"`{field}` [(|]\s*((?:`[^`]+`|,|or|\s)+)", protocol)
    assert listed is not None
    assert set(re.findall(r"`\"?([a-z-]+)\"?`", listed[1])) == set(values)


@given(st.sampled_from(sorted(LISTS)), st.text() | st.none() | st.integers() | st.lists(st.text()))
def test_one_of_takes_what_is_listed_and_nothing_else(name: str, other: object) -> None:
    check = schema.one_of(*LISTS[name])
    for value in LISTS[name]:
        assert check(value, "it") == value
        with pytest.raises(FormatError, match="it must be one of"):
            check(value + " ", "it")
    if other not in LISTS[name]:
        with pytest.raises(FormatError, match="it must be one of"):
            check(other, "it")


NUMBERS = st.integers(-(2**53), 2**53) | st.booleans() | st.floats() | st.text() | st.none()


@given(NUMBERS)
def test_counts_are_integers_from_their_least_on(value: object) -> None:
    for check, least in ((schema.count, 0), (schema.positive, 1)):
        if type(value) is int and value >= least:
            assert check(value, "it") == value
        else:
            with pytest.raises(FormatError, match="it must be an integer"):
                check(value, "it")


@given(st.text("0123456789abcdef", min_size=30, max_size=66) | st.text())
def test_digests_nonces_and_ids_have_so_many_lower_case_digits(text: str) -> None:
    digits = set(text) <= set("0123456789abcdef")
    for check, length in (
        (schema.digest, 64),
        (schema.nonce, 64),
        (schema.federation, 32),
        (schema.drawn_id, 32),
    ):
        for value in (text, text[:length], text.upper()):
            if len(value) == length and digits and value == value.lower():
                assert check(value, "it") == value
            else:
                with pytest.raises(FormatError, match="it must be"):
                    check(value, "it")


def test_checks_name_the_field_and_how_it_was_reached() -> None:
    check = schema.objects(
        {"a": schema.lists(schema.objects({"b": schema.or_null(schema.count)})), "c": schema.string}
    )
    value = {"a": [{"b": None}, {"b": 3}], "c": "x" * 5000}
    assert check(value, "it") is value
    cases = [
        ({"a": [{"b": None}, {"b": -1}], "c": ""}, "'b' of item 1 of 'a' of it must be an integer"),
        ({"a": {}, "c": ""}, "'a' of it must be a list"),
        ({"a": [], "c": None}, "'c' of it must be a string"),
        ({"a": []}, "missing"),
        ({"a": [], "c": "", "d": 1}, "unknown"),
        ([], "it must be an object"),
    ]
    for wrong, problem in cases:
        with pytest.raises(FormatError, match=problem):
            check(wrong, "it")


def test_optional_keys_are_checked_where_they_are_and_no_others_are_taken() -> None:
    check = schema.objects({"a": schema.count}, optional={"b": schema.string})
    assert check({"a": 1}, "it") == {"a": 1}
    assert check({"a": 1, "b": ""}, "it") == {"a": 1, "b": ""}
    for value, message in (
        ({"a": 1, "b": 2}, "'b' of it must be a string"),
        ({"b": ""}, r"it has the wrong keys; missing: \['a'\], unknown: \[\]"),
        ({"a": 1, "c": 2}, r"it has the wrong keys; missing: \[\], unknown: \['c'\]"),
        ([], "it must be an object, got list"),
    ):
        with pytest.raises(FormatError, match=message):
            check(value, "it")
