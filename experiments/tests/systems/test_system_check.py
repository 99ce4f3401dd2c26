"""Every system of the catalogue keeps the laws, and each law can be seen broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from system_cases import Means, small_settings

from expunge.errors import InputError
from expunge_experiments.engine import State
from expunge_experiments.message import Array
from expunge_experiments.systems.base import Cost
from expunge_experiments.systems.catalogue import NAMES, SYSTEMS, Maker
from expunge_experiments.systems.check import BrokenLawError, check_system


@pytest.mark.parametrize("name", NAMES)
def test_every_system_keeps_the_laws_in_a_fresh_process_too(name: str) -> None:
    check_system(Maker(name, small_settings(name)), exact=SYSTEMS[name].exact)


def test_a_system_of_ones_own_keeps_them() -> None:
    check_system(Means.make, exact=True)


def test_float_variants_are_not_exact() -> None:
    with pytest.raises(BrokenLawError, match="equals its own retraining"):
        check_system(Maker("b_float32"), exact=True, process=False)


class Nameless(Means):
    name = ""


class Strange(Means):
    supports = frozenset({"delete", "forget"})


class Promising(Means):
    _add = Means.__mro__[1]._add


class Hasty(Means):
    def delete(self, numbers: Array) -> Cost:
        return super().delete(numbers) if self.trained else Cost()


class Repeating(Means):
    def train(self, numbers: Array | None = None) -> Cost:
        return Cost() if self.trained else super().train(numbers)


class Greedy(Means):
    def train(self, numbers: Array | None = None) -> Cost:
        cost = super().train(numbers)
        self.retained[:] = True
        return cost


class Gruff(Means):
    supports = frozenset({"delete", "delete_client"})

    def add(self, numbers: Array) -> Cost:
        raise InputError(f"no: {numbers}")


class Helpful(Means):
    supports = frozenset({"delete", "delete_client"})

    def add(self, numbers: Array) -> Cost:
        return Cost() if self.trained else super().add(numbers)


class Scarred(Means):
    def delete(self, numbers: Array) -> Cost:
        self.sums[0, 0] += 1
        try:
            return super().delete(numbers)
        finally:
            self.sums[0, 0] -= int(self.retained.sum() < 108)


class Careless(Means):
    def _checked(self, numbers: Array) -> Array:
        return np.unique(np.asarray(numbers, dtype=np.int64))


class Boundless(Means):
    def delete_client(self, client: int) -> Cost:
        return super().delete_client(min(client, self.pool.clients - 1))


class Wordy(Means):
    def predict(self, features: Array) -> Any:
        return super().predict(features).astype(float)


class Short(Means):
    @property
    def weights(self) -> Array:
        return super().weights[:-1]

    def predict(self, features: Array) -> Any:
        return (features @ self.weights).argmax(axis=1)


class Guessing(Means):
    def predict(self, features: Array) -> Any:
        return np.zeros(len(features), dtype=np.int64)


class Moody(Means):
    moods = count()

    def _train(self, numbers: Array) -> None:
        super()._train(numbers)
        self.sums += next(self.moods)


class Modest(Means):
    @property
    def checkpoint_bytes(self) -> int:
        return 8


class Boastful(Means):
    @property
    def checkpoint_bytes(self) -> int:
        return super().checkpoint_bytes + 100_000


class Vague(Means):
    def _measured(self, operation: Callable[[], None]) -> Cost:
        return replace(super()._measured(operation), checkpoint_bytes=7)


class Forgetful(Means):
    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore({**state, "counts": np.ones(3, dtype=np.int64)})


class Secretive(Means):
    """Goes on from something that it does not save."""

    def _train(self, numbers: Array) -> None:
        super()._train(numbers)
        self.secret = 5

    def _delete(self, numbers: Array) -> None:
        super()._delete(numbers)
        self.sums += getattr(self, "secret", 0)


class Fresh(Means):
    """Saves what it was trained on, and nothing of what came after."""

    def _train(self, numbers: Array) -> None:
        super()._train(numbers)
        self.first = self.sums.copy()

    def _restore(self, state: Mapping[str, Array]) -> None:
        super()._restore(state)
        self.first = self.sums.copy()

    def _state(self) -> State:
        return super()._state() | {"sums": getattr(self, "first", self.sums)}


class Rooted(Means):
    """Goes on from what only the process remembers in which it was trained."""

    memory: State = {}  # noqa: RUF012 - this is the fault

    def _train(self, numbers: Array) -> None:
        super()._train(numbers)
        self.memory["unit"] = np.array([3])

    def _delete(self, numbers: Array) -> None:
        super()._delete(numbers)
        self.sums += self.memory.get("unit", np.array([0]))


class Late(Means):
    def _measured(self, operation: Callable[[], None]) -> Cost:
        cost = super()._measured(operation)
        return replace(cost, seconds=cost.seconds + 1.0)


class Early(Means):
    def _measured(self, operation: Callable[[], None]) -> Cost:
        cost = super()._measured(operation)
        return replace(cost, seconds=cost.seconds - 5.0, server_seconds=cost.server_seconds - 5.0)


class Silent(Means):
    def _measured(self, operation: Callable[[], None]) -> Cost:
        return replace(super()._measured(operation), rounds=0)


class Idle(Means):
    def _measured(self, operation: Callable[[], None]) -> Cost:
        return replace(super()._measured(operation), rounds=0, bytes_up=0, bytes_down=0)


class Skipping(Means):
    def _measured(self, operation: Callable[[], None]) -> Cost:
        return replace(super()._measured(operation), skipped=2)


class Priceless(Means):
    def train(self, numbers: Array | None = None) -> Any:
        super().train(numbers)


class Stubborn(Means):
    def delete(self, numbers: Array) -> Cost:
        cost = super().delete(numbers)
        self.retained[numbers] = True
        return cost


class Keeping(Means):
    def _delete(self, numbers: Array) -> None:
        self.tell("forget", numbers)


class Thorough(Means):
    def delete_client(self, client: int) -> Cost:
        cost = super().delete_client(client)
        self.retained[0] ^= cost.rounds == 0
        return cost


class Undefined(Means):
    @property
    def weights(self) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return super().weights / (self.counts.sum() > 0)


class Central(Means):
    """Says that it is centralized, and has rounds."""

    def _measured(self, operation: Callable[[], None]) -> Cost:
        cost = super()._measured(operation)
        self._engine = None
        return replace(cost, checkpoint_bytes=self.checkpoint_bytes)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Nameless, "a system has a name"),
        (Strange, r"`supports` lists some of .* \(it lists forget\)"),
        (Promising, "an operation in `supports` is there: add"),
        (Hasty, "delete before training is refused"),
        (Repeating, "training twice is refused"),
        (Greedy, "what it was trained on is what it retains"),
        (Gruff, r"raises UnsupportedError \(it raised InputError"),
        (Helpful, r"raises UnsupportedError \(it raised nothing\)"),
        (Scarred, "a refusal changes nothing: delete of a sample beyond"),
        (Careless, "delete of a sample beyond the pool is refused"),
        (Boundless, "deleting a client that there is not is refused"),
        (Wordy, "predictions are labels 0 to 2"),
        (Short, r"the head has the shape \(7, 3\)"),
        (Guessing, "accuracy is above chance"),
        (Moody, "the same seed gives the same state"),
        (Modest, "checkpoint_bytes is what is really written"),
        (Boastful, "checkpoint_bytes is what is really written"),
        (Vague, "a cost says what is kept afterwards"),
        (Forgetful, "a system that is loaded has the state that was saved"),
        (Secretive, "a system that is loaded goes on alike: delete$"),
        (Fresh, "a system that is loaded after operations is the one that was saved"),
        (Late, "seconds are those of clients, server and orchestration together"),
        (Early, "seconds of train is not negative"),
        (Silent, "where there are rounds there are bytes"),
        (Idle, "training exchanges something with clients"),
        (Skipping, "is skipped at most once"),
        (Priceless, "train returns its cost"),
        (Stubborn, "after delete, what is retained follows"),
        (Keeping, "after delete it equals its own retraining"),
        (Thorough, "deleting a client that has nothing left changes nothing"),
        (Undefined, "the head is finite"),
        (Central, "a centralized system exchanges nothing"),
    ],
)
def test_each_law_is_seen_to_be_broken(broken: type[Means], law: str) -> None:
    with pytest.raises(BrokenLawError, match=law) as caught:
        check_system(broken.make, exact=True, process=False)
    assert "breaks a law" in str(caught.value)
    if broken is not Nameless:
        assert "Class means (means)" in str(caught.value)


def test_what_only_a_fresh_process_shows() -> None:
    check_system(Rooted.make, exact=False, process=False)
    with pytest.raises(BrokenLawError, match="goes on alike: delete, in a fresh process"):
        check_system(Rooted.make, exact=False)


def test_what_a_fresh_process_cannot_import_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match="process=False"):
        check_system(lambda pool, seed: Means.make(pool, seed + 1), exact=True)
