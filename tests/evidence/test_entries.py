"""Log entries: one form for each, and nothing else is taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge.crypto import Envelope, canonical
from expunge.errors import FormatError
from expunge.evidence.log import (
    ENTRY_KINDS,
    SECOND_VERSIONS,
    binds_of,
    make_entry,
    read_entry,
)
from expunge.wire.schema import UNDISCLOSED
from support.evidence import (
    CLIENT_KEY,
    FEDERATION,
    NEW,
    OLD,
    SPEC,
    aggregated,
    at,
    changed,
    digest,
)

D = digest("any")
CONTENT: dict[str, dict[str, Any]] = {
    "founded": {
        "federation": FEDERATION,
        "spec": SPEC.digest,
        "server": OLD.public.id,
        "key": OLD.public.text,
        "solver": "woodbury",
    },
    "enrolled": {"name": "north", "role": "client", "key": CLIENT_KEY.text},
    "changed": changed(
        "north", 3, added=2, orders=[{"order": "o", "found": 1}], audits=["a"], head=""
    ),
    "aggregated": aggregated(north=3, south=1),
    "voided": {
        "aggregation": "f" * 32,
        "clients": [{"client": "north", "sequence": 3, "request": D}],
        "reason": "impossible",
        "roster": D,
        "size": 3,
        "agreed": {"north": "0" * 128},
    },
    "judged": {
        "aggregation": "f" * 32,
        "verdict": Envelope.signed("verdict", {}, NEW).to_json(),
    },
    "excluded": {
        "aggregation": "f" * 32,
        "clients": [{"client": "north", "sequence": 3}],
        "excluded": ["north"],
    },
    "forwarded": {"client": "north", "sequence": 3, "size": 40, "root": D},
    "commanded": {
        "actor": "op",
        "sequence": 1,
        "command": D,
        "action": "set-gamma",
        "summary": {"gamma": "0x1p+0", "n": -1},
    },
    "amended": {
        "spec_before": D,
        "spec_after": digest("b"),
        "actor": "op",
        "ledger": D,
        "head": "",
    },
    "erased": {"first": 0, "generation": 0, "round": 7},
    "ordered": {"order": "o", "subject": D, "deadline": at(9), "clients": ["north"]},
    "answered": {"order": "o", "client": "north", "found": 0, "sequence": 5},
    "completed": {"order": "o"},
    "audited": {
        "audit": "a",
        "result": "different",
        "clients": ["north"],
        "ledger": D,
        "recomputed": D,
        "count": 1,
    },
    "digested": {"round": 3, "count": 21, "ledger": D, "head": ""},
    "forgotten": {"client": "north", "count": 4, "ledger_before": D, "ledger_after": D, "head": D},
    "rotated": {"old": OLD.public.id, "new": NEW.public.id, "key": NEW.public.text},
    "restored": {"size": 12, "withheld": []},
    "corrected": {
        "first": 7,
        "after": at(1),
        "ahead": 157680000,
        "orders": [{"order": "order-1", "deadline": at(9)}],
    },
}
SECOND: dict[str, dict[str, Any]] = {
    "changed": {"version": 2, "binds": "samples", "base": 5},
    "judged": {"version": 2, "masked": {"north": ["AA==", "AA=="]}},
    "restored": {"version": 2, "id": D},
    "audited": {"version": 2, "current": D},
}


def test_every_kind_has_a_case() -> None:
    assert set(CONTENT) == set(ENTRY_KINDS)
    assert set(SECOND) == set(SECOND_VERSIONS)


@pytest.mark.parametrize("kind", SECOND)
def test_a_second_version_has_all_of_its_fields(kind: str) -> None:
    content = CONTENT[kind] | SECOND[kind]
    data = make_entry(kind, at(1), **content)
    assert read_entry(data) == {"kind": kind, "time": at(1), **content}
    assert make_entry(**read_entry(data)) == data
    for name in SECOND[kind]:
        word = "unknown" if name == "version" else "missing"
        with pytest.raises(FormatError, match=word):
            make_entry(kind, at(1), **{key: content[key] for key in content if key != name})


@pytest.mark.parametrize("version", [0, 1, 3, True, "2", None, 2.5])
def test_there_is_no_other_version(version: Any) -> None:
    for kind, more in SECOND.items():
        with pytest.raises(FormatError, match="'version'"):
            make_entry(kind, at(1), **{**CONTENT[kind], **more, "version": version})


@pytest.mark.parametrize("kind", sorted(set(CONTENT) - set(SECOND)))
def test_other_kinds_have_one_version(kind: str) -> None:
    for version in (1, 2):
        with pytest.raises(FormatError, match=r"unknown: .*version"):
            make_entry(kind, at(1), **CONTENT[kind], version=version)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in SECOND for name in SECOND[kind]]
)
def test_no_later_field_takes_a_value_of_another_form(kind: str, name: str) -> None:
    for wrong in WRONG:
        with pytest.raises(FormatError, match=name):
            make_entry(kind, at(1), **{**CONTENT[kind], **SECOND[kind], name: wrong})


def test_a_digest_binds_sums_or_builds_on_them() -> None:
    first = CONTENT["changed"]
    assert binds_of(read_entry(make_entry("changed", at(1), **first))) == "sums"
    for binds, base in (("sums", None), ("samples", 0), ("samples", 7)):
        entry = read_entry(make_entry("changed", at(1), **first, version=2, binds=binds, base=base))
        assert binds_of(entry) == binds
    for message in ("gram", "group", "factor"):
        other = {**first, "message": message, "version": 2}
        assert read_entry(make_entry("changed", at(1), **other, binds="sums", base=None))
        with pytest.raises(FormatError, match="opens no commitments"):
            make_entry("changed", at(1), **other, binds="samples", base=7)
    for binds, base in (("sums", 7), ("sums", 0), ("samples", None)):
        with pytest.raises(FormatError, match="'base'"):
            make_entry("changed", at(1), **first, version=2, binds=binds, base=base)


@pytest.mark.parametrize("kind", CONTENT)
def test_reading_and_making_are_inverse(kind: str) -> None:
    data = make_entry(kind, at(1), **CONTENT[kind])
    assert read_entry(data) == {"kind": kind, "time": at(1), **CONTENT[kind]}
    assert make_entry(**read_entry(data)) == data


@pytest.mark.parametrize("kind", CONTENT)
def test_a_missing_or_an_unknown_field_is_refused_by_name(kind: str) -> None:
    for name in CONTENT[kind]:
        with pytest.raises(FormatError, match=rf"missing: .*{name}"):
            make_entry(
                kind, at(1), **{key: value for key, value in CONTENT[kind].items() if key != name}
            )
    with pytest.raises(FormatError, match=r"unknown: .*feature"):
        make_entry(kind, at(1), **CONTENT[kind], feature="0.25")


WRONG: tuple[Any, ...] = (
    None,
    1.5,
    -2,
    b"x",
    "UPPER case !",
    "x" * 2000,
    [1.5],
    {"a": 1.5},
    ["not a name!"],
    {"A!": 1},
)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, content in CONTENT.items() for name in content]
)
def test_no_field_takes_a_value_of_another_form(kind: str, name: str) -> None:
    for wrong in WRONG:
        if name == "solver" and wrong == "UPPER case !":
            continue  # the one free text
        with pytest.raises(FormatError, match=name):
            make_entry(kind, at(1), **{**CONTENT[kind], name: wrong})


def test_only_what_secure_aggregation_hides_may_be_undisclosed() -> None:
    for kind, names in (
        ("answered", {"found"}),
        ("forgotten", {"count"}),
        ("aggregated", set()),
        ("changed", set()),
    ):
        for name, value in CONTENT[kind].items():
            if isinstance(value, int) and not isinstance(value, bool):
                hidden = {**CONTENT[kind], name: UNDISCLOSED}
                if name in names:
                    assert read_entry(make_entry(kind, at(1), **hidden))[name] == UNDISCLOSED
                else:
                    with pytest.raises(FormatError, match=name):
                        make_entry(kind, at(1), **hidden)


@pytest.mark.parametrize("bad", [True, "1", 1.0, None])
def test_a_count_is_an_integer(bad: object) -> None:
    with pytest.raises(FormatError, match="'generation'"):
        make_entry("erased", at(1), first=1, generation=bad, round=1)


@pytest.mark.parametrize("bad", [0, 1, "true", None])
def test_a_flag_is_a_boolean(bad: object) -> None:
    with pytest.raises(FormatError, match="'leave'"):
        make_entry("changed", at(1), **changed("north", 1, leave=bad))


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "2026-11-15",
        "2026-11-15T09:30:00",
        "2026-11-15 09:30:00Z",
        "2026-11-15T09:30:00+00:00",
        "2026-11-15T09:30:00Z\n",
        "2026-02-30T09:30:00Z",
        "2026-11-15T24:00:00Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-11-15T09:30:00Z",
        None,
        5,
    ],
)
def test_a_time_is_a_time_of_the_calendar_in_utc(bad: Any) -> None:
    with pytest.raises(FormatError, match="'time'"):
        make_entry("completed", bad, order="o")


@pytest.mark.parametrize("bad", ["", "North", "a b", "-a", "x" * 65, "ä", "a\n", "a/b"])
def test_names_are_plain(bad: str) -> None:
    with pytest.raises(FormatError, match="'client'"):
        make_entry("forgotten", at(1), **{**CONTENT["forgotten"], "client": bad})


@pytest.mark.parametrize("kind", ["", "Founded", "unknown", None, 3, ["founded"]])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(FormatError, match="known kind"):
        make_entry(kind, at(1))


@pytest.mark.parametrize("value", [None, [], "founded", 3, {}])
def test_what_is_no_entry_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match="known kind"):
        read_entry(canonical.encode(value))


@pytest.mark.parametrize(("kind", "name"), [("founded", "server"), ("rotated", "new")])
def test_a_key_and_its_id_belong_together(kind: str, name: str) -> None:
    with pytest.raises(FormatError, match="is not the id of its key"):
        make_entry(kind, at(1), **{**CONTENT[kind], name: CLIENT_KEY.id})


@given(st.sampled_from(sorted(CONTENT)), st.data())
def test_bytes_that_are_not_canonical_are_refused(kind: str, data: st.DataObject) -> None:
    entry = make_entry(kind, at(1), **CONTENT[kind])
    place = data.draw(st.integers(0, len(entry)))
    with pytest.raises(FormatError):
        read_entry(entry[:place] + b"\n" + entry[place:])
    with pytest.raises(FormatError):
        read_entry(entry[: min(place, len(entry) - 1)])
