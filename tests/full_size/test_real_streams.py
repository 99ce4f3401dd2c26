"""Streams of single changes on real features: every head is that of retraining, and nearly all are
moved row by row.
"""

from __future__ import annotations

import numpy as np
import pytest

from expunge import CholeskySolver, Grid, Spec, Statistics, WoodburySolver, solve
from expunge.ridge.encoding import integer_rows
from expunge.solvers.base import ExactSolver
from support import seeds
from support.real_features import load

pytestmark = pytest.mark.data

_REQUESTS = 80
_APART = 40  # requests between heads that are compared
_FIRST = 8  # requests after which a stream has begun


@pytest.mark.parametrize("variant", [CholeskySolver, WoodburySolver])
@pytest.mark.parametrize(
    ("name", "gamma", "grid"),
    [
        ("cifar10_efficientnet_lite0.npz", 1.0, Grid()),
        ("digits_by_writer_efficientnet_lite0.npz", 10.0, Grid()),
        ("tweets_by_user_mpnet.npz", 1.0, Grid()),
        ("loans_by_bank.npz", 1.0, Grid(2, 32)),
    ],
)
def test_a_stream_on_real_features_is_that_of_retraining(
    variant: type[ExactSolver], name: str, gamma: float, grid: Grid
) -> None:
    """Rare and dead features, duplicates and nearly collinear columns are all in these."""
    arrays, chance = load(name), seeds.chance(f"{name} {variant.__name__}")
    features, labels = arrays["train_features"][:20_000], arrays["train_labels"][:20_000]
    spec = Spec(
        dim=features.shape[1],
        labels=tuple(range(int(labels.max()) + 1)),
        gamma=gamma,
        grid=grid,
    )
    ledger = Statistics.of(spec, features, labels)
    solver = variant(spec, ledger)
    solver.head()
    live, gone, moved = np.ones(len(features), dtype=bool), list[int](), 0
    for request in range(_REQUESTS):
        if gone and chance.random() < 0.3:
            place, change = gone.pop(chance.randrange(len(gone))), solver.add_rows
        else:
            place, change = chance.choice(np.flatnonzero(live).tolist()), solver.delete_rows
            gone.append(place)
        sample = slice(place, place + 1)
        one = Statistics.of(spec, features[sample], labels[sample], lost_columns="accept")
        change(integer_rows(spec, features[sample], labels[sample]))
        live[place] = not live[place]
        ledger = ledger + one if live[place] else ledger - one
        diagnostics = solver.head().diagnostics
        assert diagnostics is not None
        moved += request >= _FIRST and diagnostics.contraction == 0.0
        if request % _APART == _APART - 1:
            assert solver.head().digest == solve(ledger).digest
    assert moved >= 0.9 * (_REQUESTS - _FIRST)
    retained = Statistics.of(spec, features[live], labels[live], lost_columns="accept")
    assert solver.statistics == retained
    assert solver.head().digest == solve(retained).digest
