"""Published heads in one file: one that is cut short is told from one that is wrong."""

from __future__ import annotations

import pytest

from expunge.errors import FormatError, TruncatedError
from expunge.evidence import published_head
from support.evidence import NEW, a_head, story

FILE = published_head.write(story().certificate(), a_head())


def test_a_head_that_is_cut_short_anywhere_is_said_to_be() -> None:
    assert published_head.read(FILE, NEW.public)[0] == a_head()
    for size in range(len(FILE)):
        with pytest.raises(TruncatedError, match="fetch it again"):
            published_head.read(FILE[:size], NEW.public)


@pytest.mark.parametrize(
    "data",
    [b"nonsense", b"x" + FILE[1:], FILE[:18] + b"\x02" + FILE[19:], FILE + b"\0"],
    ids=["nonsense", "altered", "version", "longer"],
)
def test_what_is_no_such_head_is_not_said_to_be_cut_short(data: bytes) -> None:
    with pytest.raises(FormatError) as problem:
        published_head.read(data, NEW.public)
    assert not isinstance(problem.value, TruncatedError)
