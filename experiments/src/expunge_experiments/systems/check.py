"""A check that any compared system can be put through, ours or a researcher's own."""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from expunge.errors import ExpungeError, InputError
from expunge_experiments.message import Array
from expunge_experiments.pool import Pool
from expunge_experiments.systems.base import OPERATIONS, Cost, System, UnsupportedError

Make = Callable[[Pool, int], System]

_CLASSES, _DIM, _CLIENTS, _SAMPLES, _TEST = 3, 6, 4, 120, 90
_HELD_BACK = 12  # samples that are not trained on at first, so that they can be added
_OVERHEAD = 1024  # bytes that an archive has for each array, at most


class BrokenLawError(ExpungeError, AssertionError):
    """A system breaks a law that every compared system must keep."""


def check_system(make: Make, *, exact: bool, seed: int = 0, process: bool = True) -> None:
    """Raise BrokenLawError unless the systems that `make(pool, seed)` makes keep their laws on a
    small pool of four clients.

    `exact` says that after a deletion the head (where there is none, the server's state) must be,
    bit for bit, that of a new system of the same seed that is trained on the retained samples. One
    law needs a fresh process, which must be able to import `make`; where it cannot (in a notebook,
    say), pass process=False and that law is tried in this process. Passing does not prove anything
    for other pools.
    """
    with tempfile.TemporaryDirectory(prefix="expunge-check-") as folder:
        _Check(make, seed, Path(folder)).run(exact=exact, process=process)


def small_pool(seed: int) -> tuple[Pool, Array, Array]:
    """Three classes of normal samples around centres well apart, at four clients; with test
    features and labels.
    """
    draw = np.random.default_rng([seed, 0xC4EC])
    centres = 2.0 * np.eye(_CLASSES, _DIM) + 0.5
    labels = draw.permutation(np.arange(_SAMPLES + _TEST) % _CLASSES)
    features = (centres[labels] + 0.5 * draw.standard_normal((len(labels), _DIM))).astype(
        np.float32
    )
    owners = draw.permutation(np.arange(_SAMPLES) % _CLIENTS)
    pool = Pool(features[:_SAMPLES], labels[:_SAMPLES], owners, _CLASSES, _CLIENTS)
    return pool, features[_SAMPLES:], labels[_SAMPLES:]


class _Check:
    def __init__(self, make: Make, seed: int, folder: Path) -> None:
        self.make, self.seed, self.folder = make, seed, folder
        self.pool, self.features, self.labels = small_pool(seed)
        self.first = np.arange(_SAMPLES - _HELD_BACK)
        self.later = np.arange(_SAMPLES - _HELD_BACK, _SAMPLES)
        self.what = "this system"

    def run(self, *, exact: bool, process: bool) -> None:
        """Every law, one after another."""
        system = self.make(self.pool, self.seed)
        self._words(system)
        self._refused_before_training(system)
        cost = system.train(self.first)
        self._require(
            np.array_equal(np.flatnonzero(system.retained), self.first),
            "what it was trained on is what it retains",
        )
        self._cost(system, cost, "train")
        self._predictions(system)
        self._accuracy(system)
        self._deterministic(system)
        self._unsupported(system)
        self._bad_requests(system)
        self._kept(system)
        self._goes_on(system, process=process)
        self._operations(system)
        self._comes_back(system)
        self._nothing_left(system)
        if exact:
            self._exact()
        self._emptied(system)

    def _require(self, holds: bool, law: str, details: str = "") -> None:
        if not holds:
            raise BrokenLawError(
                f"{self.what} breaks a law: {law}{f' ({details})' if details else ''}"
            )

    def _trained(self) -> System:
        system = self.make(self.pool, self.seed)
        system.train(self.first)
        return system

    # -- words and refusals ------------------------------------------------------------------------

    def _words(self, system: System) -> None:
        for word in ("name", "title"):
            given = getattr(system, word, None)
            self._require(
                isinstance(given, str) and bool(given),
                f"a system has a {word}, which is a word or more",
            )
        self.what = f"{system.title} ({system.name})"
        strange = sorted(set(system.supports) - set(OPERATIONS))
        self._require(
            not strange,
            f"`supports` lists some of {', '.join(OPERATIONS)}",
            f"it lists {', '.join(strange)}",
        )
        for operation in sorted(system.supports):
            own = getattr(type(system), f"_{operation}")
            if operation == "delete_client" and "delete" in system.supports:
                continue  # whose default is to delete the client's samples
            self._require(
                own is not getattr(System, f"_{operation}"),
                f"an operation in `supports` is there: {operation}",
            )

    def _refused(
        self,
        system: System,
        operation: str,
        argument: Any,
        law: str,
        kind: type[Exception] = InputError,
    ) -> None:
        before = fingerprint(system)
        try:
            getattr(system, operation)(argument)
        except kind:
            pass
        except Exception as problem:  # any other error is the wrong kind of refusal
            self._require(False, law, f"it raised {type(problem).__name__}: {problem}")
        else:
            self._require(False, law, "it raised nothing")
        self._require(fingerprint(system) == before, f"a refusal changes nothing: {law}")

    def _refused_before_training(self, system: System) -> None:
        for operation, argument in _examples(self.first[:2]).items():
            try:
                getattr(system, operation)(argument)
            except ExpungeError:
                continue
            self._require(False, f"{operation} before training is refused")

    def _unsupported(self, system: System) -> None:
        for operation, argument in _examples(self.first[:2]).items():
            if operation not in system.supports:
                law = f"{operation}, which is not in `supports`, raises UnsupportedError"
                self._refused(system, operation, argument, law, UnsupportedError)

    def _bad_requests(self, system: System) -> None:
        self._refused(system, "train", self.first, "training twice is refused")
        bad = {
            "a sample beyond the pool": [_SAMPLES],
            "a negative number": [-1],
            "a sample named twice": [3, 3],
        }
        for operation, state, wrong in (
            ("delete", "is not retained", self.later),
            ("add", "is retained", self.first),
        ):
            if operation in system.supports:
                for what, numbers in {**bad, f"a sample that {state}": wrong[:1]}.items():
                    self._refused(
                        system, operation, np.array(numbers), f"{operation} of {what} is refused"
                    )
        if "delete_client" in system.supports:
            self._refused(
                system, "delete_client", _CLIENTS, "deleting a client that there is not is refused"
            )

    # -- learning ----------------------------------------------------------------------------------

    def _predictions(self, system: System) -> None:
        predictions = np.asarray(system.predict(self.features))
        fine = (
            predictions.shape == (_TEST,)
            and predictions.dtype.kind == "i"
            and bool(((predictions >= 0) & (predictions < _CLASSES)).all())
        )
        self._require(
            fine,
            f"predictions are labels 0 to {_CLASSES - 1}, one for each row",
            f"shape {predictions.shape}, {predictions.dtype}",
        )
        weights, shape = system.weights, (_DIM + 1, _CLASSES)
        if weights is not None:
            self._require(
                weights.shape == shape, f"the head has the shape {shape}", f"it has {weights.shape}"
            )
            self._require(bool(np.isfinite(weights).all()), "the head is finite")

    def _accuracy(self, system: System) -> None:
        accuracy = system.accuracy(self.features, self.labels)
        chance = 1.0 / _CLASSES
        enough = chance + 4.0 * float(np.sqrt(chance * (1.0 - chance) / _TEST))
        self._require(
            accuracy > enough,
            "accuracy is above chance after training",
            f"{accuracy:.3f}, and chance may give {enough:.3f}",
        )

    def _deterministic(self, system: System) -> None:
        again = self._trained()
        self._require(
            fingerprint(again) == fingerprint(system),
            "the same seed gives the same state, bit for bit",
        )
        self._require(
            np.array_equal(again.predict(self.features), system.predict(self.features)),
            "and the same predictions",
        )

    def _exact(self) -> None:
        for operation, argument in _examples(self.first[::5]).items():
            if operation == "add":
                continue
            system = self._trained()
            if operation not in system.supports:
                continue
            getattr(system, operation)(argument)
            again = self.make(self.pool, self.seed)
            again.train(np.flatnonzero(system.retained))
            law = (
                f"after {operation} it equals its own retraining on the retained samples, bit "
                "for bit"
            )
            self._require(_published(system) == _published(again), law)
            self._require(
                np.array_equal(system.predict(self.features), again.predict(self.features)), law
            )

    # -- operations and their costs ----------------------------------------------------------------

    def _operations(self, system: System) -> None:
        """It does every operation it supports; retained samples and costs follow."""
        examples: dict[str, Any] = {
            "delete": self.first[5:15],
            "add": self.later,
            "delete_client": 1,
        }
        for operation, argument in examples.items():
            if operation not in system.supports:
                continue
            expected = system.retained.copy()
            expected[self.pool.numbers_of(1) if operation == "delete_client" else argument] = (
                operation == "add"
            )
            cost = getattr(system, operation)(argument)
            self._require(
                bool((system.retained == expected).all()),
                f"after {operation}, what is retained follows",
            )
            self._cost(system, cost, operation)
            self._predictions(system)

    def _nothing_left(self, system: System) -> None:
        """A client without samples can be deleted: nothing is retained or forgotten by that."""
        if "delete_client" in system.supports:
            before = system.retained.copy()
            self._cost(system, system.delete_client(1), "delete_client")
            self._require(
                bool((system.retained == before).all()),
                "deleting a client that has nothing left changes nothing",
            )
            self._predictions(system)

    def _emptied(self, system: System) -> None:
        if "delete" in system.supports:
            self._cost(system, system.delete(np.flatnonzero(system.retained)), "delete")
            self._require(not system.retained.any(), "everything can be deleted")
            self._predictions(system)

    def _cost(self, system: System, cost: Cost, operation: str) -> None:
        self._require(isinstance(cost, Cost), f"{operation} returns its cost", type(cost).__name__)
        for field in fields(cost):
            least = (
                -1e-6 if field.name == "orchestration_seconds" else 0
            )  # a difference of two clocks
            value = getattr(cost, field.name)
            self._require(
                value >= least, f"{field.name} of {operation} is not negative", f"{value}"
            )
        self._require(
            cost.skipped <= 1, f"one {operation} is skipped at most once", f"{cost.skipped}"
        )
        parts = cost.client_seconds + cost.server_seconds + cost.orchestration_seconds
        law = "seconds are those of clients, server and orchestration together"
        self._require(
            abs(cost.seconds - parts) <= 1e-6 + 1e-6 * cost.seconds,
            law,
            f"{cost.seconds} and {parts}",
        )
        exchanged = (cost.rounds > 0, cost.bytes_up > 0, cost.bytes_down > 0)
        if system._engine is None:
            law = "a centralized system exchanges nothing with clients"
            self._require(not any(exchanged) and cost.client_seconds == 0.0, law, operation)
        else:
            self._require(
                len(set(exchanged)) == 1,
                f"where there are rounds there are bytes, up and down: {operation}",
            )
            self._require(
                exchanged[0] or operation != "train", "training exchanges something with clients"
            )
        law = "a cost says what is kept afterwards"
        self._require(cost.checkpoint_bytes == system.checkpoint_bytes, law, operation)

    # -- keeping -----------------------------------------------------------------------------------

    def _kept(self, system: System) -> None:
        """What is written is as many bytes as are reported, but for the account and the names of
        arrays.
        """
        folder = self.folder / "kept"
        system.save(folder)
        sizes: dict[str, int] = {}
        for file in folder.iterdir():
            with np.load(file, allow_pickle=False) as content:
                sizes |= {f"{file.name}/{name}": content[name].nbytes for name in content.files}
        total = sum(size for name, size in sizes.items() if "/system." not in name)
        law = "checkpoint_bytes is what is really written, up to a small header"
        self._require(
            total == system.checkpoint_bytes,
            law,
            f"{system.checkpoint_bytes} reported, {total} written",
        )
        written = sum(file.stat().st_size for file in folder.iterdir())
        self._require(
            written - sum(sizes.values()) <= _OVERHEAD * len(sizes),
            law,
            f"files of {written} bytes for {total}",
        )

    def _goes_on(self, system: System, *, process: bool) -> None:
        """Saved, then loaded into a new system: the same state, and the same after the same
        operation.
        """
        folder = self.folder / "saved"
        system.save(folder)
        here = self.make(self.pool, self.seed).load(folder)
        self._require(
            fingerprint(here) == fingerprint(system),
            "a system that is loaded has the state that was saved",
        )
        operations = {
            name: argument
            for name, argument in _examples(self.first[20:30]).items()
            if name in system.supports
        }
        if "add" in operations:
            operations["add"] = self.later
        name, argument = next(iter(operations.items()), ("", None))
        wanted = _gone_on(self.make, self.seed, folder, name, argument)
        original = self._after(self._trained(), name, argument)
        law = f"a system that is loaded goes on alike: {name}"
        self._require(wanted == original, law)
        if process:
            self._require(
                _in_fresh_process(self.make, self.seed, folder, name, argument) == wanted,
                f"{law}, in a fresh process",
            )

    def _comes_back(self, system: System) -> None:
        """After operations as well, what is saved is all there is to a system."""
        folder = self.folder / "changed"
        system.save(folder)
        again = self.make(self.pool, self.seed).load(folder)
        law = "a system that is loaded after operations is the one that was saved"
        self._require(fingerprint(again) == fingerprint(system), law)
        self._require(
            np.array_equal(again.predict(self.features), system.predict(self.features)), law
        )
        self._require(_published(again) == _published(system), law)

    def _after(self, system: System, name: str, argument: Any) -> tuple[str, str]:
        return _outcome(system, name, argument, self.features)


# -- comparing -------------------------------------------------------------------------------------


def fingerprint(system: System) -> str:
    """SHA-256 of everything that is kept, at server and clients, and of what is retained."""
    states: dict[str, Mapping[str, Array]] = {
        "server": system._state(),
        "account": {"retained": system.retained},
    }
    if system._engine is not None:
        states |= {f"client {client}": state for client, state in system._engine.states().items()}
    return _hashed(states)


def _published(system: System) -> str:
    weights = system.weights
    return _hashed({"server": system._state() if weights is None else {"weights": weights}})


def _hashed(states: Mapping[str, Mapping[str, Array]]) -> str:
    content = hashlib.sha256()
    for owner, state in sorted(states.items()):
        for name, array in sorted(state.items()):
            content.update(f"{owner}/{name}/{array.dtype.str}/{array.shape}\n".encode())
            content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


def _examples(numbers: Array) -> dict[str, Any]:
    """An argument for each operation."""
    return {"delete": numbers, "delete_client": 2, "add": numbers}


def _outcome(system: System, name: str, argument: Any, features: Array) -> tuple[str, str]:
    if name:
        getattr(system, name)(argument)
    return fingerprint(system), _hashed({"": {"predictions": np.asarray(system.predict(features))}})


def _gone_on(make: Make, seed: int, folder: Path, name: str, argument: Any) -> tuple[str, str]:
    """The outcome of an operation on a new system with the state loaded."""
    pool, features, _ = small_pool(seed)
    return _outcome(make(pool, seed).load(folder), name, argument, features)


def _in_fresh_process(
    make: Make, seed: int, folder: Path, name: str, argument: Any
) -> tuple[str, str]:
    try:
        pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise InputError(
            f"a fresh process cannot import what makes this system ({problem}): put it into a "
            "module, or pass process=False"
        ) from problem
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        try:
            return fresh.submit(_gone_on, make, seed, folder, name, argument).result()
        except BrokenProcessPool as problem:
            raise InputError(
                "the fresh process could not start: call check_system under `if __name__ == "
                "'__main__':`, or pass process=False"
            ) from problem
