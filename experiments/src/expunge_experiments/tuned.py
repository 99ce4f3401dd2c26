"""Settings of every system for every dataset: sizes are the paper's, the rest was chosen by the
experiment `sweep`.

`tuned.json` beside this file holds what it chose, with every point that it tried. A sweep of one's
own comes first, where the environment variable EXPUNGE_SWEEP names its results.json; it may have
datasets that the package does not know.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from expunge.errors import FormatError, InputError
from expunge_experiments.systems import catalogue

VARIABLE = "EXPUNGE_SWEEP"
Chosen = Mapping[
    str, Mapping[str, Mapping[str, Any]]
]  # by dataset and system: settings, accuracy and points

FEDERATED_RIDGE = ("a_exact", "b_exact", "a_float64", "b_float64", "a_float32", "b_float32", "afl")
RIDGE = ("central", *FEDERATED_RIDGE, "acil", "acu")
STAND_INS = {  # originals that a user may have, and the shared features whose settings they borrow
    "cifar10_raw": "cifar10",
    "cifar100": "cifar10",
    "femnist": "digits_by_writer",
    "sentiment140": "tweets_by_user",
}
_BY_ROUNDS = ("fedavg", "exactfun", "fedcio")
_FATS = {
    "cifar10": (60, 64),
    "digits_by_writer": (120, 50),
    "tweets_by_user": (100, 300),
}  # rounds, samples
_ROUNDS = {"tweets_by_user": 100}


def sizes_for(dataset: str, system: str) -> dict[str, Any]:
    """The paper's rounds, clients and samples; those of CIFAR for a dataset that it has not.

    FedCIO's rounds are FedAvg's.
    """
    basis = STAND_INS.get(_original(dataset), dataset)
    if system == "fats":
        rounds, samples = _FATS.get(basis, _FATS["cifar10"])
        return {"rounds": rounds, "clients_per_round": 5, "samples": samples, "steps": 1}
    if system in _BY_ROUNDS:
        each = {} if system == "fedcio" else {"clients_per_round": 20}
        return {"rounds": _ROUNDS.get(basis, 120), **each}
    return {}


def swept_as(system: str) -> str:
    """The system whose sweep counts for this one: all ridge systems solve the same equation, and
    share central ridge's gamma.
    """
    return "central" if system in RIDGE else system


def basis_of(dataset: str, sweep: Path | None = None) -> str:
    """The dataset whose settings are used for this one: itself, or the shared features that replace
    an original.
    """
    return _found(dataset, sweep)[0]


def settings_for(dataset: str, system: str, sweep: Path | None = None) -> Any:
    """The settings of a system for a dataset, as the system takes them.

    `sweep` is the results.json of a sweep of one's own.
    """
    if (
        system not in catalogue.NAMES
    ):  # of one's own, which no sweep of ours knows: its own defaults
        return catalogue.settings_from(system, {})
    basis, chosen = _found(dataset, sweep)
    source = swept_as(system)
    if source not in chosen:
        raise InputError(
            f"no sweep has chosen settings of {source} for {basis}: run expunge experiment sweep "
            "with this system"
        )
    return catalogue.settings_from(
        system, sizes_for(dataset, system) | dict(chosen[source]["settings"])
    )


def read(path: Path) -> Chosen:
    """What a sweep chose: from its results.json, or from a file like the package's own."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("experiment") == "sweep":
            return chosen_of([(entry["key"], entry["result"]) for entry in content["results"]])
        chosen: Chosen = content["chosen"]
    except FileNotFoundError as problem:
        raise InputError(
            f"there is no results file of a sweep at {path}: run expunge experiment sweep, or "
            f"unset {VARIABLE}"
        ) from problem
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise FormatError(
            f"{path} holds no results of a sweep ({problem}): give the results.json of experiment "
            "sweep"
        ) from problem
    return chosen


def chosen_of(results: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Chosen:
    """Keys and results of a sweep's cells by dataset and system; one of each, or they would
    contradict each other.
    """
    chosen: dict[str, dict[str, Mapping[str, Any]]] = {}
    for key, result in results:
        systems = chosen.setdefault(str(key["dataset"]), {})
        if key["system"] in systems:
            raise InputError(
                f"this sweep has chosen twice for {key['system']} on {key['dataset']}: sweep it "
                "once"
            )
        systems[str(key["system"])] = {
            name: result[name] for name in ("settings", "accuracy", "points")
        }
    return chosen


def written(chosen: Chosen) -> str:
    """The text of a file like the package's own, a line for each point."""
    lines = []
    for dataset, systems in chosen.items():
        parts = []
        for system, entry in systems.items():
            points = ",\n".join(f"     {json.dumps(point)}" for point in entry["points"])
            head = (
                f'"settings": {json.dumps(entry["settings"])}, "accuracy": '
                f"{json.dumps(entry['accuracy'])}"
            )
            parts.append(f'   "{system}": {{{head}, "points": [\n{points}]}}')
        lines.append(f'  "{dataset}": {{\n' + ",\n".join(parts) + "}")
    return (
        '{"format": 1, "command": "expunge experiment sweep", "chosen": {\n'
        + ",\n".join(lines)
        + "}}\n"
    )


def _found(dataset: str, sweep: Path | None) -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    named = (
        sweep
        if sweep is not None
        else Path(os.environ[VARIABLE])
        if os.environ.get(VARIABLE)
        else None
    )
    own = read(named) if named is not None else {}
    if dataset in own:
        return dataset, own[dataset]
    basis, packaged = STAND_INS.get(_original(dataset), dataset), _packaged()
    if basis not in packaged:
        raise InputError(
            f"nobody has chosen settings for the dataset {dataset!r:.80}. Choose them: run "
            "expunge experiment sweep --dataset "
            f"{shlex.quote(dataset)}, and set {VARIABLE} to the results.json that it writes"
        )
    return basis, packaged[basis]


def _original(dataset: str) -> str:
    """The original whose features these are: also of a path to a file that `expunge experiment
    features` made.
    """
    stem = Path(dataset).stem
    return next((name for name in STAND_INS if stem.startswith(f"{name}-")), dataset)


@cache
def _packaged() -> Chosen:
    with (files("expunge_experiments") / "tuned.json").open(encoding="utf-8") as file:
        chosen: Chosen = json.load(file)["chosen"]
    return chosen
