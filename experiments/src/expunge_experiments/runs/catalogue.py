"""All experiments by name, each imported when it is first wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from expunge_experiments.config import require_known
from expunge_experiments.runs.base import Experiment

# In the order in which they are run; each is a module of this package, or a package with a module
# run
ABOUT = {
    "sweep": (
        "Choose learning rates, epochs and batch sizes by the same small sweep for every system."
    ),
    "accuracy": "Measure every system's accuracy: the paper's accuracy table.",
    "invariance": (
        "Measure how far partition and arithmetic move the head, also over gamma: the "
        "paper's invariance table."
    ),
    "chunks": (
        "Delete four times 20% of the data, then the rest: the paper's figure of chunked deletions."
    ),
    "burst": (
        "Delete 200 single samples and add them back: the paper's figure of bursts and its "
        "table of deviations."
    ),
    "costs": "Measure bytes and server time against d and r: the paper's cost table.",
    "necessity": "Run the counterexample of the lemma that second-order information is necessary.",
    "feasibility": (
        "Test the three conditions of the downdate lemma, on random and adversarial cases."
    ),
    "posterior": "Measure the KL divergence after a stream, and the monotonicity of the posterior.",
    "drift": (
        "Follow 10,000 requests: float Variant B against exact Variant B at several "
        "condition numbers."
    ),
    "alpha": "Vary Exact-Fun's quantization step: accuracy against how often it retrains.",
    "lowrank": "Send low-rank and sketched Grams: bytes against true deviation against bound.",
    "highdim": "Compute exact Grams and certified heads up to d = 8192 within memory.",
}


class _Experiments(Mapping[str, Experiment[Any]]):
    """Experiments by name."""

    def __init__(self) -> None:
        self._made: dict[str, Experiment[Any]] = {}

    def __getitem__(self, name: str) -> Experiment[Any]:
        require_known("experiment", name, ABOUT)
        if name not in self._made:
            module = import_module(f"expunge_experiments.runs.{name}")
            if hasattr(module, "__path__"):  # a package
                module = import_module(f"{module.__name__}.run")
            content = vars(module).values()
            kinds = [
                value
                for value in content
                if isinstance(value, type) and issubclass(value, Experiment)
            ]
            self._made[name] = next(kind() for kind in kinds if getattr(kind, "name", None) == name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(ABOUT)

    def __len__(self) -> int:
        return len(ABOUT)


EXPERIMENTS: Mapping[str, Experiment[Any]] = _Experiments()
