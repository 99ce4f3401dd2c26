"""Systems are built by name, and their settings are values of JSON."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from system_cases import pool_of, small_settings

from expunge.errors import InputError
from expunge_experiments.engine import ProcessEngine
from expunge_experiments.message import ArrayMessage
from expunge_experiments.pool import Pool
from expunge_experiments.systems.catalogue import (
    NAMES,
    SYSTEMS,
    Maker,
    build,
    employ,
    entry_of,
    settings_dict,
    settings_from,
)


@pytest.fixture
def pool() -> Pool:
    return pool_of()


@pytest.mark.parametrize("name", NAMES)
def test_entries_say_what_the_classes_say(name: str, pool: Pool) -> None:
    system, entry = build(name, pool, settings=small_settings(name)), SYSTEMS[name]
    assert (system.name, system.title) == (name, entry.title)
    assert (system._engine is None) == entry.centralized


@pytest.mark.parametrize("name", NAMES)
def test_settings_survive_json(name: str) -> None:
    for settings in (small_settings(name), SYSTEMS[name].find("settings")()):
        assert settings_from(name, json.loads(json.dumps(settings_dict(settings)))) == settings


@pytest.mark.parametrize("name", [name for name in NAMES if not SYSTEMS[name].centralized])
def test_workers_made_from_a_pickled_description_answer_alike(name: str, pool: Pool) -> None:
    made = employ(name, small_settings(name), 3, pool.classes, pool.dim)
    message = ArrayMessage("add", {}, {"numbers": pool.numbers_of(1)})
    answers = [
        one(1, pool.samples_of(1)).respond(message).to_bytes()
        for one in (made, pickle.loads(pickle.dumps(made)))  # noqa: S301
    ]
    assert answers[0] == answers[1]


def test_an_engine_may_be_given(pool: Pool) -> None:
    engine = ProcessEngine(pool, employ("b_exact", None, 0, pool.classes, pool.dim))
    system = build("b_exact", pool, engine=engine)
    system.train()
    assert engine.usage.exchanges == 1


def test_a_maker_builds_and_can_be_pickled(pool: Pool) -> None:
    system = pickle.loads(pickle.dumps(Maker("central")))(pool, 7)  # noqa: S301
    assert (system.name, system.seed) == ("central", 7)


@pytest.mark.parametrize(
    ("name", "mapping", "words"),
    [
        ("ridge", {}, "there is no system 'ridge'; there are: central"),
        ("central", {"gama": 1.0}, "central has no setting 'gama'; it has: gamma"),
        ("central", {"gamma": "1"}, "central.gamma must be of type float, and is '1'"),
        ("central", {"gamma": True}, "central.gamma must be of type float, and is True"),
        ("central", {"gamma": 0}, "gamma must be positive and finite, and is 0.0"),
        ("a_exact", {"gamma": float("inf")}, "gamma must be positive and finite, and is inf"),
        ("sisa", {"shards": 2.0}, "sisa.shards must be of type int, and is 2.0"),
        ("sisa", {"slices": 0}, "slices must be a whole number of at least 1, and is 0"),
        ("fedcio", {"clusters": -1}, "clusters must be a whole number of at least 1, and is -1"),
        ("fedcio", {"assignment": [0, 7]}, "assignment must name clusters 0 to 4"),
        ("fedcio", {"assignment": 3}, "fedcio.assignment must be of type tuple, and is 3"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    name: str, mapping: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        settings_from(name, mapping)
    assert words in str(caught.value)


def test_a_system_of_ones_own_is_named_by_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: Pool
) -> None:
    lines = [
        "from expunge_experiments.systems.catalogue import Entry",
        "from expunge_experiments.systems.central import Central, CentralSettings",
        "OWN = Entry('Mine', 'system_of_my_own', 'Central', 'CentralSettings')",
        "BARE = Entry('Mine', 'system_of_my_own', 'Central')",
    ]
    (tmp_path / "system_of_my_own.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert entry_of("system_of_my_own:OWN").title == "Mine"
    system = build(
        "system_of_my_own:OWN", pool, settings=settings_from("system_of_my_own:OWN", {"gamma": 2})
    )
    assert system.settings.gamma == 2.0
    assert settings_dict(settings_from("system_of_my_own:BARE", {})) == {}
    with pytest.raises(InputError, match="has no setting 'gamma'; it has: none"):
        settings_from("system_of_my_own:BARE", {"gamma": 1})
    for name, words in {
        "system_of_my_own:OTHER": "is not found",
        "no_such_module:OWN": "must be on the Python path",
        ":OWN": "is not found",
        "system_of_my_own:Central": "must be an Entry",
    }.items():
        with pytest.raises(InputError, match=words):
            entry_of(name)


def test_what_does_not_fit_together_is_refused(pool: Pool) -> None:
    with pytest.raises(InputError, match="no system 'x'"):
        build("x", pool)
    with pytest.raises(
        InputError, match="takes settings of type CentralSettings, not SisaSettings"
    ):
        build("central", pool, settings=small_settings("sisa"))
    with pytest.raises(InputError, match="SISA is centralized: it has no clients"):
        employ("sisa", None, 0, 3, 5)
    engine = ProcessEngine(pool, employ("afl", None, 0, pool.classes, pool.dim))
    with pytest.raises(InputError, match="takes no engine"):
        build("central", pool, engine=engine)
    with pytest.raises(InputError, match=r"and not \(n, 6\)"):
        employ("afl", None, 0, 3, 6)(0, pool.samples_of(0))
    with pytest.raises(InputError, match="it has no clients to ask"):
        build("central", pool).tell("add", np.arange(2))
