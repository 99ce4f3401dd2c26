"""The public names of the Flower apps, held to what tests/test_api.py asks of all others."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from support.docstrings import (
    public_things,
    run_examples,
    with_members,
    with_other_parameters,
    with_unknown_errors,
    without_examples,
    without_sentence,
)
from support.public_api import WITH_FLOWER, public_names


@pytest.mark.parametrize("module", WITH_FLOWER)
def test_a_module_shows_its_public_names(module: str) -> None:
    content = import_module(module)
    assert content.__all__ == public_names(module)
    assert [name for name in dir(content) if not name.startswith("__")] == sorted(content.__all__)


def test_docstrings_are_whole() -> None:
    things = public_things(WITH_FLOWER)
    documented = with_members(things)
    assert without_sentence(documented) == []
    assert with_other_parameters(documented) == []
    assert with_unknown_errors(documented) == []
    assert without_examples(things) == []


@pytest.mark.parametrize(
    "path", [f"{module}.{name}" for module in WITH_FLOWER for name in public_names(module)]
)
def test_examples_run_and_leave_nothing_behind(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(public_things(WITH_FLOWER)[path], path)
    assert list(tmp_path.iterdir()) == []
