"""The public names: each can be found, says what it is, names its parameters and has examples that
run. Those of the Flower apps are in tests/transport/flower/test_flower_api.py.
"""

from __future__ import annotations

import subprocess
import sys
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
from support.public_api import PUBLIC, SOURCE, WITHOUT_FLOWER, public_names

THINGS = public_things(WITHOUT_FLOWER)
DOCUMENTED = with_members(THINGS)


@pytest.mark.parametrize("module", WITHOUT_FLOWER)
def test_a_public_module_says_which_names_it_has(module: str) -> None:
    content = import_module(module)
    assert content.__doc__
    assert content.__all__ == public_names(module)
    assert len(set(content.__all__)) == len(content.__all__)
    for name in content.__all__:
        assert getattr(content, name) is not None


def test_docstrings_begin_with_a_whole_sentence() -> None:
    assert without_sentence(DOCUMENTED) == []


def test_docstrings_name_every_parameter_in_order() -> None:
    assert with_other_parameters(DOCUMENTED) == []


def test_docstrings_name_errors_that_exist() -> None:
    assert with_unknown_errors(DOCUMENTED) == []


def test_public_names_have_examples() -> None:
    assert without_examples(THINGS) == []


@pytest.mark.parametrize("path", THINGS)
def test_examples_run_and_leave_nothing_behind(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(THINGS[path], path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", WITHOUT_FLOWER)
def test_examples_of_a_module_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(import_module(module), module)
    assert list(tmp_path.iterdir()) == []


def lazy_packages() -> list[str]:
    """The packages that import their names when asked."""
    files = [file for file in SOURCE.rglob("__init__.py") if "lazy_names(" in file.read_text()]
    return sorted(".".join(file.parent.relative_to(SOURCE.parent).parts) for file in files)


@pytest.mark.parametrize("name", sorted({*lazy_packages(), *WITHOUT_FLOWER}))
def test_dir_shows_what_is_public(name: str) -> None:
    module = import_module(name)
    modules = {
        public.removeprefix(f"{name}.").partition(".")[0]
        for public in PUBLIC
        if public.startswith(f"{name}.")
    }
    shown = dir(module)
    plain = {each for each in shown if not (each.startswith("__") and each.endswith("__"))}
    assert plain == {each for each in module.__all__ if not each.startswith("__")} | modules
    assert set(module.__all__) <= set(shown)
    assert {"__all__", "__doc__", "__name__"} <= set(shown)


def test_everything_in_dir_is_there_in_a_fresh_process() -> None:
    code = "import expunge; print(*(type(getattr(expunge, name)) for name in dir(expunge)))"
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "module" in done.stdout


def test_every_public_module_is_reached_from_the_package() -> None:
    code = f"import expunge; print(*({', '.join(WITHOUT_FLOWER)}))"
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("<module ") == len(WITHOUT_FLOWER)
