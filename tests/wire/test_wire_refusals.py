"""The table of refusals is whole: what is raised, typed, told over HTTP and documented is in it."""

from __future__ import annotations

import ast
import re
import sqlite3
from copy import copy
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import expunge
from expunge.errors import FormatError, RefusalCode, RefusedError, StoreError
from expunge.wire import refusals
from expunge.wire.refusals import REFUSALS, from_json, headers_of, status_of, to_json
from support.sources import nodes_of

SOURCE = Path(expunge.__file__).parent
PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
NAMED_SETS = {name: value for name, value in vars(refusals).items() if isinstance(value, frozenset)}


def texts(node: ast.AST) -> set[str]:
    """The texts that an expression may be; of a choice, both."""
    if isinstance(node, ast.IfExp):
        return texts(node.body) | texts(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def raised() -> set[str]:
    """Every code with which a refusal is made anywhere in the source."""
    calls = (
        node
        for _, node in nodes_of(SOURCE, "RefusedError(")
        if isinstance(node, ast.Call) and node.args
    )
    made = [call.args[0] for call in calls if getattr(call.func, "id", "") == "RefusedError"]
    assert all(texts(code) for code in made), "the code of a refusal must be seen where it is made"
    return set().union(*map(texts, made))


def test_every_code_that_is_raised_is_in_the_table_and_the_other_way_round() -> None:
    assert raised() == set(REFUSALS) == set(get_args(RefusalCode))


def test_the_documented_table_is_the_table() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [
        (code, str(entry.status), entry.retry, entry.meaning) for code, entry in REFUSALS.items()
    ]
    before = re.search(r"before a signature has been checked \((.*?)\)", text, re.DOTALL)
    assert before is not None
    assert set(re.findall(r"`([a-z-]+)`", before[1])) == refusals.UNPROVEN


def test_named_sets_have_codes_of_the_table_only() -> None:
    assert len(NAMED_SETS) >= 9
    for name, codes in NAMED_SETS.items():
        assert codes, name
        assert codes <= set(REFUSALS), name


def test_what_a_moment_means_for_the_named_sets() -> None:
    """A refusal that a stranger may get says nothing of earlier attempts, and one that was judged
    is not given to strangers.
    """
    assert refusals.UNPROVEN < refusals.ANYBODY
    assert not refusals.JUDGED & refusals.ANYBODY
    assert not refusals.PASSING & refusals.JUDGED
    assert refusals.UNREAD <= refusals.ANYBODY
    assert not refusals.KEPT & refusals.JUDGED


@pytest.mark.parametrize("code", REFUSALS)
def test_a_time_to_come_back_is_told_where_a_retry_helps_later(code: RefusalCode) -> None:
    told = headers_of(RefusedError(code, "no"))
    assert ("retry-after" in told) == (REFUSALS[code].retry == "later")
    assert (status_of(code) in (429, 503)) == (REFUSALS[code].retry == "later")


values = st.dictionaries(st.text(), st.none() | st.integers() | st.text(), max_size=4)


@given(st.sampled_from(sorted(REFUSALS)) | st.text(), st.text(), values)
def test_a_refusal_is_read_back(code: str, reason: str, details: dict[str, object]) -> None:
    """So is one of a later version, whose code is not known here; it is told as one of 422."""
    refusal = from_json({"code": code, "details": details, "reason": reason})
    known = {name: details[name] for name in details if name not in ("self", "code", "reason")}
    assert to_json(refusal) == {"code": code, "details": known, "reason": reason}
    for again in (from_json(to_json(refusal)), copy(refusal)):
        assert to_json(again) == to_json(refusal)
    assert code in REFUSALS or status_of(refusal.code) == 422


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"code": "gone", "details": {}},
        {"code": 1, "details": {}, "reason": ""},
        {"code": "gone", "details": [], "reason": ""},
        {"code": "gone", "details": {}, "reason": None},
        {"code": "gone", "details": {}, "reason": "", "more": 1},
    ],
)
def test_what_is_no_refusal_is_not_read_as_one(value: Any) -> None:
    with pytest.raises(FormatError, match="no refusal"):
        from_json(value)


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (
            OSError(28, "No space left on device", "/srv/secret/server.db"),
            "No space left on device",
        ),
        (sqlite3.OperationalError("disk I/O error"), "disk I/O error"),
        (OSError("made to fail"), "made to fail"),
    ],
)
def test_a_cause_is_told_without_paths(cause: Exception, told: str) -> None:
    problem = StoreError("/srv/secret/server.db could not be changed")
    problem.__cause__ = cause
    assert refusals.cause_of(problem) == refusals.cause_of(cause) == told
