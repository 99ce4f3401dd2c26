"""Configs: what is written is read again, and whatever is wrong is refused by name, with what would
do.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiment_cases import Toy, ToySettings
from expunge.errors import InputError
from expunge_experiments import config
from expunge_experiments.runs.catalogue import ABOUT, EXPERIMENTS
from support.pages import blocks_of

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.builds(
        ToySettings,
        dataset=st.text(),
        seeds=st.lists(st.integers(0, 2**60)).map(tuple),
        factor=FINITE,
        steps=st.integers(1, 10**6),
        exactly=st.booleans(),
        mode=st.sampled_from(["sum", "mean"]),
        limits=st.tuples(FINITE, FINITE),
        cap=st.none() | st.integers(),
    )
)
def test_what_is_written_is_read_again(settings: ToySettings) -> None:
    text = config.written(Toy(), settings)
    assert config.settings_of(Toy(), tomllib.loads(text)["toy"], quick=False) == settings


def test_a_config_says_what_its_settings_mean() -> None:
    text = config.written(Toy(), Toy.full)
    assert 'dataset = "tiny"  # features of the test' in text
    assert "steps = 3  # how many, for each seed" in text
    assert "# cap is not set" in text


def test_settings_of_systems_are_shown_though_they_are_not_in_the_config() -> None:
    text = config.written(EXPERIMENTS["accuracy"], EXPERIMENTS["accuracy"].quick)
    assert "#   cifar10 fedavg: " in text
    assert "rounds = 120" in text


def test_a_table_is_laid_over_the_full_or_the_quick_variant() -> None:
    assert config.settings_of(Toy(), {"factor": 3}, quick=False) == ToySettings(factor=3.0)
    assert config.settings_of(Toy(), {"factor": 3}, quick=True) == ToySettings(
        factor=3.0, seeds=(0,)
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"step": 1}, ["no setting 'step' of toy", "Did you mean 'steps'?", "limits"]),
        ({"steps": 1.5}, ["toy.steps = 1.5 must be a whole number, such as 3"]),
        ({"steps": True}, ["must be a whole number"]),
        ({"steps": 0}, ["[toy] steps = 0 must be at least 1"]),
        ({"factor": "two"}, ["toy.factor", "must be a number"]),
        ({"factor": float("nan")}, ["must be a number (not nan)"]),
        ({"exactly": 1}, ["must be true or false"]),
        ({"mode": "median"}, ["must be one of 'sum', 'mean'"]),
        ({"seeds": 1}, ["must be a list of which each is a whole number, such as [0, 1, 2]"]),
        ({"seeds": [1, "2"]}, ["a list of which each is a whole number"]),
        ({"limits": [1.0]}, ["a list of 2: a number (not nan), a number (not nan)"]),
        ({"cap": "x"}, ["must be a whole number"]),
        ({"dataset": 7}, ["must be a word in quotes"]),
    ],
)
def test_what_is_wrong_is_refused_by_name(table: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        config.settings_of(Toy(), table, quick=False)
    for part in words:
        assert part in str(refused.value)


def test_tables_of_experiments_that_there_are_not() -> None:
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        config.check_tables({"acuracy": {}}, tuple(ABOUT))
    with pytest.raises(InputError, match="stands outside any table"):
        config.check_tables({"accuracy": 3}, tuple(ABOUT))
    with pytest.raises(InputError, match=r"seeds = \[1\] stands outside any table.*below \[NAME\]"):
        config.check_tables({"seeds": [1]}, tuple(ABOUT))
    config.check_tables({"accuracy": {}}, tuple(ABOUT))


def test_files_that_are_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no config"):
        config.read(tmp_path / "none.toml")
    with pytest.raises(InputError, match="is a folder"):
        config.read(tmp_path)
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(InputError, match=r"is no TOML: .*--show-config"):
        config.read(tmp_path / "bad.toml")


def test_datasets_on_the_command_line() -> None:
    assert config.on_datasets(Toy(), ["mine"]) == {"dataset": "mine"}
    assert config.on_datasets(EXPERIMENTS["accuracy"], ["a", "b"]) == {"datasets": ["a", "b"]}
    with pytest.raises(InputError, match="one dataset at a time"):
        config.on_datasets(Toy(), ["a", "b"])


def test_the_config_in_the_documentation_is_taken() -> None:
    (block,) = blocks_of("docs/how-to/reproduce-the-paper.md", "toml")
    tables = tomllib.loads(block.text)
    config.check_tables(tables, list(EXPERIMENTS))
    for name, table in tables.items():
        config.settings_of(EXPERIMENTS[name], table, quick=False)
