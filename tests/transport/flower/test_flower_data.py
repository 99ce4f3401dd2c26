"""A hundred clients with the real CIFAR-10 features in Flower's simulation (make test-data)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from expunge.federation import Federation
from support.cifar import CLIENTS, Cifar, enrolled, spec_of
from support.flower_processes import flower, simulate

pytestmark = pytest.mark.data


def test_a_simulation_of_a_hundred_clients() -> None:
    """Half of the clients send rows, half sums of 13 MB; the ledger is that of central
    retraining.
    """
    cifar = Cifar()
    spec = spec_of(cifar)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "federation"
        with Federation.found(folder, spec) as federation:
            enrolled(federation, cifar)
        with flower(Path(place) / "home") as found:
            config = (
                f'expunge-server="{folder / "server"}" expunge-clients="{folder}/clients/*" '
                "expunge-reply-seconds=300.0"
            )
            said = simulate(found, CLIENTS, config, seconds=900.0)
        assert f"{CLIENTS} requests applied, {CLIENTS} clients" in said
        cifar.retained[:] = True
        with Federation.open(folder) as federation:
            cifar.check(federation, spec)
