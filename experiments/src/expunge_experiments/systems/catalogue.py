"""Every system by its name: built for a pool, or its clients alone (which is all that a Flower node
needs).

A module of a system has a System class, a frozen dataclass of settings with defaults (if it has
any), and, if it has clients, a Worker class that is made as `Worker(client, samples, settings=...,
seed=..., classes=...)`. Modules are imported when they are first used. A system of one's own is
named by where its Entry is found: "package.module:NAME".
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any, cast

from expunge.errors import InputError
from expunge_experiments.engine import Employ, MessageEngine, ProcessEngine, Worker
from expunge_experiments.pool import ClientSamples, Pool
from expunge_experiments.systems.base import System

_ROOM = "expunge_experiments.systems"


@dataclass(frozen=True)
class NoSettings:
    """The settings of a system that has none."""


@dataclass(frozen=True)
class Entry:
    """Where a system is found: the names of its classes in a module that can be imported.

    `exact`: after a deletion its head is, bit for bit, that of its own retraining.
    """

    title: str
    module: str
    system: str
    settings: str = ""  # none: there is nothing to be set
    worker: str = ""  # none: centralized
    exact: bool = False

    @property
    def centralized(self) -> bool:
        """Whether it sees all samples in one place, and has no clients."""
        return not self.worker

    def find(self, kind: str) -> Any:
        """The class of this kind: "system", "settings" or "worker"."""
        if kind == "settings" and not self.settings:
            return NoSettings
        return getattr(import_module(self.module), getattr(self, kind))


def _ours(
    title: str, module: str, system: str, settings: str, worker: str = "", *, exact: bool = False
) -> Entry:
    return Entry(title, f"{_ROOM}.{module}", system, settings, worker, exact)


def _variant(letter: str, arithmetic: str) -> Entry:
    exact, kind = arithmetic == "exact", arithmetic.title()
    names = (f"Variant{letter}{kind}", "VariantSettings", f"{kind}Worker{letter}")
    return _ours(f"Variant {letter}, {arithmetic}", "variants", *names, exact=exact)


SYSTEMS: Mapping[str, Entry] = types.MappingProxyType(
    {
        "central": _ours(
            "Central ridge retrain", "central", "Central", "CentralSettings", exact=True
        ),
        "a_exact": _variant("A", "exact"),
        "b_exact": _variant("B", "exact"),
        "a_float64": _variant("A", "float64"),
        "b_float64": _variant("B", "float64"),
        "a_float32": _variant("A", "float32"),
        "b_float32": _variant("B", "float32"),
        "fedavg": _ours(
            "FedAvg retrain", "fedavg", "FedAvg", "FedAvgSettings", "FedAvgWorker", exact=True
        ),
        "fats": _ours("FATS", "fats", "Fats", "FatsSettings", "FatsWorker"),
        "exactfun": _ours(
            "Exact-Fun", "exactfun", "ExactFun", "ExactFunSettings", "ExactFunWorker", exact=True
        ),
        "sisa": _ours("SISA", "sisa", "Sisa", "SisaSettings", exact=True),
        "fedcio": _ours("FedCIO", "fedcio", "FedCio", "FedCioSettings", "FedCioWorker"),
        "afl": _ours("AFL", "afl", "Afl", "AflSettings", "AflWorker"),
        "acil": _ours("ACIL", "recursion", "Acil", "AcilSettings"),
        "acu": _ours("ACU", "recursion", "Acu", "AcuSettings"),
    }
)
NAMES = tuple(SYSTEMS)


def entry_of(name: str) -> Entry:
    """The entry of this name; refuses an unknown name."""
    if name in SYSTEMS:
        return SYSTEMS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InputError(
            f"there is no system {name!r:.60}; there are: {', '.join(NAMES)}, and your own as "
            "module:NAME"
        )
    try:
        entry = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise InputError(
            f"the system {name!r:.80} is not found: {problem}. Its module must be on the Python "
            "path"
        ) from problem
    if not isinstance(entry, Entry):
        raise InputError(
            f"{name!r:.80} must be an Entry (expunge_experiments.systems.catalogue), not a "
            f"{type(entry).__name__}"
        )
    return entry


@dataclass(frozen=True)
class Employment:
    """Makes the clients' side of a system.

    Can be pickled, and says all that workers depend on besides their samples.
    """

    name: str
    settings: Any
    seed: int
    classes: int
    dim: int

    def __call__(self, client: int, samples: ClientSamples) -> Worker:
        """The worker of this client."""
        if samples.features.ndim != 2 or samples.features.shape[1] != self.dim:
            raise InputError(
                f"client {client} has features of shape {samples.features.shape}, and not (n, "
                f"{self.dim})"
            )
        made = entry_of(self.name).find("worker")
        return cast(
            "Worker",
            made(client, samples, settings=self.settings, seed=self.seed, classes=self.classes),
        )


def employ(name: str, settings: Any, seed: int, classes: int, dim: int) -> Employ:
    """How workers of this system are made; settings None means the defaults."""
    entry = entry_of(name)
    if entry.centralized:
        raise InputError(f"{entry.title} is centralized: it has no clients to employ")
    return Employment(name, _settings(name, settings), seed, classes, dim)


def build(
    name: str,
    pool: Pool,
    *,
    settings: Any = None,
    seed: int = 0,
    engine: MessageEngine | None = None,
) -> System:
    """The system of this name, untrained.

    Without an engine, its clients are objects in this process.
    """
    entry, chosen = entry_of(name), fitted(name, settings, pool)
    if entry.centralized and engine is not None:
        raise InputError(f"{entry.title} is centralized: it takes no engine")
    if not entry.centralized and engine is None:
        engine = ProcessEngine(pool, employ(name, chosen, seed, pool.classes, pool.dim))
    return cast("System", entry.find("system")(pool, engine, chosen, seed))


def fitted(name: str, settings: Any, pool: Pool) -> Any:
    """The settings of a system for a pool, None meaning the defaults: those that depend on features
    have a method `fitted`.
    """
    chosen = _settings(name, settings)
    return chosen.fitted(pool.features) if hasattr(chosen, "fitted") else chosen


@dataclass(frozen=True)
class Maker:
    """`build` of one system as a function of pool and seed, as `check_system` takes it.

    Can be pickled.
    """

    name: str
    settings: Any = None

    def __call__(self, pool: Pool, seed: int) -> System:
        """The system, untrained, with its clients in this process."""
        return build(self.name, pool, settings=self.settings, seed=seed)


# -- settings as values of JSON --------------------------------------------------------------------


def settings_dict(settings: Any) -> dict[str, Any]:
    """Settings as values of JSON; `settings_from` is the inverse."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
    }


def settings_from(name: str, mapping: Mapping[str, Any]) -> Any:
    """The settings of a system, with defaults for what is not given.

    Refuses unknown keys and impossible values by name.
    """
    kind = entry_of(name).find("settings")
    names = {field.name for field in fields(kind)}
    unknown = sorted(set(mapping) - names)
    if unknown:
        raise InputError(
            f"{name} has no setting {unknown[0]!r:.60}; it has: "
            f"{', '.join(sorted(names)) or 'none'}"
        )
    hints = typing.get_type_hints(kind)
    return kind(
        **{key: _fitting(f"{name}.{key}", hints[key], value) for key, value in mapping.items()}
    )


def _settings(name: str, settings: Any) -> Any:
    kind = entry_of(name).find("settings")
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise InputError(
            f"{name} takes settings of type {kind.__name__}, not {type(settings).__name__}"
        )
    return settings


def _fitting(name: str, hint: Any, value: Any) -> Any:
    """The value in the type that the settings ask for; whole numbers are real ones, lists are
    tuples.
    """
    wanted = typing.get_origin(hint) or hint
    if wanted in (types.UnionType, typing.Union):
        return value  # for the settings themselves to judge
    if wanted is tuple and isinstance(value, (list, tuple)):
        return tuple(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise InputError(f"{name} must be of type {wanted.__name__}, and is {value!r:.60}")
    return value
