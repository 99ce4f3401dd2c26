"""What `measure` refuses before anything is started, and where Flower is looked for.

No Flower is needed for any of this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from expunge.errors import ExpungeError, InputError, MissingExtraError
from expunge_experiments.flower import Job, JobRequest, measure
from expunge_experiments.flower.runtime import programs
from expunge_experiments.systems.base import UnsupportedError
from job_cases import CLIENTS, shared_pool


@pytest.mark.parametrize(
    ("job", "options", "error", "words"),
    [
        (Job("central"), {}, UnsupportedError, "centralized"),
        (
            Job("afl", requests=(JobRequest("delete", (1,)),)),
            {},
            UnsupportedError,
            "no operation delete",
        ),
        (Job("nobody"), {}, InputError, "no system 'nobody'"),
        (Job("b_exact"), {"clients": 3}, InputError, "5 clients, and 3 were asked for"),
        (Job("b_exact"), {"actors": 0}, InputError, "at least one actor"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    tmp_path: Path, job: Job, options: dict[str, int], error: type[ExpungeError], words: str
) -> None:
    shared_pool().write(tmp_path)
    with pytest.raises(error, match=words):
        measure(job, **({"folder": tmp_path, "clients": CLIENTS} | options))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["shared-pool"]


def test_flower_is_looked_for_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_FLOWER_PYTHON", str(tmp_path / "python"))
    with pytest.raises(MissingExtraError, match=r"install expunge\[flower\]"):
        programs()
    for name in ("flower-superlink", "flwr"):
        (tmp_path / name).touch()
    assert programs() == tmp_path


def test_without_flower_a_simulation_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_pool().write(tmp_path)
    monkeypatch.setenv("EXPUNGE_FLOWER_PYTHON", str(tmp_path / "python"))
    with pytest.raises(MissingExtraError, match="EXPUNGE_FLOWER_PYTHON"):
        measure(Job("b_exact"), folder=tmp_path, clients=CLIENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["shared-pool"]
