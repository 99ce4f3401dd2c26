"""Flower's own runtimes, for real: a simulation on Ray, and a deployment of separate processes that
are killed in turn.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from expunge import solve
from support.flower import Clinics
from support.flower_processes import (
    APP,
    Deployment,
    Flower,
    flower,
    simulate,
    until,
)


def summary(said: str) -> str:
    """What the ServerApp said at its end."""
    found = re.findall(r"Expunge: (\d+ samples, head \w+; .*)", said)
    assert found, said
    return str(found[-1])


def test_a_simulation_of_ten_clients(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, 10)
    with flower(tmp_path / "home") as found:
        config = f'expunge-server="{clinics.server}" expunge-clients="{clinics.path}/clients/*"'
        said = simulate(found, 10, config)
    assert summary(said).startswith(
        f"50 samples, head {solve(clinics.statistics()).digest}; 10 requests applied, 10 clients"
    )
    clinics.check()


class Runs:
    """Runs of the app on a deployment of the clinics."""

    def __init__(self, found: Flower, clinics: Clinics) -> None:
        self.flower = found
        self.clinics = clinics
        config = (
            f'expunge-server="{clinics.server}" expunge-fewest-nodes={len(clinics.retained)} '
            "expunge-reply-seconds=20.0"
        )
        self.command = ("run", str(APP), "here", "--stream", "--run-config", config)

    def begun(self) -> subprocess.Popen[bytes]:
        """A run in the middle: its ServerApp has asked, and a ClientApp is at work."""
        run = self.flower.start("run", "flwr", *self.command)
        until(lambda: self.flower.found("flwr-clientapp"), "a ClientApp is at work", 90.0)
        return run

    def change(self) -> None:
        for name in self.clinics.retained:
            self.clinics.add(name, 2)
            self.clinics.forget(name, 1)

    def check(self, said: str) -> None:
        """At the end of a run, the ledger and all heads are those of retraining."""
        assert f"head {solve(self.clinics.statistics()).digest};" in summary(said)
        self.clinics.check()


def test_a_deployment_whose_parts_are_killed_in_turn(tmp_path: Path) -> None:
    """TLS, node authentication, two SuperNodes.

    Whatever is killed, a run that is submitted again carries on.
    """
    clinics = Clinics(tmp_path, 2)
    with flower(tmp_path / "home") as found:
        deployment = Deployment(found, {name: clinics.folder(name) for name in clinics.retained})
        deployment.start_superlink()
        deployment.register()
        for name in deployment.nodes:
            deployment.start_node(name)
        runs = Runs(found, clinics)

        runs.begun()
        found.kill("flwr-serverapp")
        runs.check(found.flwr(*runs.command, seconds=180.0))

        runs.change()
        runs.begun()
        found.kill("flower-superlink")
        deployment.start_superlink()
        runs.check(found.flwr(*runs.command, seconds=180.0))

        # A SuperNode is asked anew in the same run, once the SuperLink has let it in again.
        runs.change()
        run = runs.begun()
        found.kill(deployment.keys["clinic-00"].name)
        until(
            lambda: deployment.keep_node("clinic-00") or run.poll() is not None,
            "the run ends",
            180.0,
        )
        runs.check(found.log("run"))
