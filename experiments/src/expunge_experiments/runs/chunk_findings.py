"""What follows from the large deletions of `chunks`: each claim with whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from expunge_experiments import published
from expunge_experiments.markdown import seconds_text
from expunge_experiments.runs.base import Done, Finding
from expunge_experiments.runs.retraining import EXACT
from expunge_experiments.systems.catalogue import entry_of

Found = Mapping[str, Sequence[Done]]  # results over seeds, by system
_SKIPPERS = ("fats", "exactfun")
_ITERATIVE = ("fedavg", "fats", "exactfun")


def findings_of(deleted: Sequence[float], clients: int, found: Found) -> list[Finding]:
    """All of them. The step that empties the federation is left out where retraining means nothing."""
    leaving = sum(share < 1 for share in deleted)
    made = [*_exactness(deleted, found), *_one_round(found), *_skips(leaving, found)]
    if leaving:
        made += [*_speed(leaving, found), *_latency(leaving, found), *_split(leaving, clients, found), *_accuracy(leaving, found)]
    return made


def cumulative(done: Done, name: str) -> list[float]:
    """Of a part of the cost, after each step."""
    return [float(one) for one in np.cumsum([step["cost"][name] for step in done.result["steps"]])]


def _exactness(deleted: Sequence[float], found: Found) -> list[Finding]:
    exact = [one for name in EXACT for one in found.get(name, [])]
    if not exact:
        return []
    checks = [step["retraining"]["equal"] for one in exact for step in one.result["steps"]]
    text = "After a step of the exact variants, the head has the digest of one solved afresh from the retained samples"
    made = [Finding(f"{text}: {sum(checks)} of {len(checks)} times.", all(checks))]
    if deleted[-1] == 1.0:
        norms = [one.result["steps"][-1]["retraining"]["norm"] for one in exact]
        made.append(Finding("When the last sample is deleted, the head of the exact variants is zero.", not any(norms)))
    return made


def _one_round(found: Found) -> list[Finding]:
    ours = [step["cost"]["rounds"] for name in EXACT for step in _steps(found, name)]
    if not ours:
        return []
    many = [name for name in (*_ITERATIVE, "fedcio") if name in found]
    theirs = [f"{entry_of(name).title} {_mean(_steps(found, name), 'rounds'):.4g}" for name in many]
    beside = f"; on average, {', '.join(theirs)}" if theirs else ""
    return [Finding(f"The exact variants need one round for each step{beside}.", set(ours) == {1})]


def _skips(leaving: int, found: Found) -> list[Finding]:
    made = []
    for name in _SKIPPERS:
        steps = _steps(found, name, leaving)
        if steps:
            skipped = sum(step["cost"]["skipped"] for step in steps)
            text = (
                f"{entry_of(name).title} skips {skipped} of {len(steps)} deletions that leave samples (the paper: almost never)."
            )
            made.append(Finding(text, skipped <= len(steps) // 10))
    return made


def _speed(leaving: int, found: Found) -> list[Finding]:
    totals = {name: _average(cumulative(one, "seconds")[leaving - 1] for one in dones) for name, dones in found.items()}
    made = []
    for ours in EXACT:
        if ours not in totals:
            continue
        title, mine = entry_of(ours).title, totals[ours]
        others = {name: total for name, total in totals.items() if name != ours}
        slower = [f"{entry_of(name).title} ({total / mine:.3g} times)" for name, total in others.items() if total >= mine]
        faster = [f"{entry_of(name).title} ({total / mine:.2g} times)" for name, total in others.items() if total < mine]
        text = f"{title}, takes {mine:.3g} s in process for all steps that leave samples."
        text += f" More: {', '.join(slower)}." if slower else ""
        text += f" Less: {', '.join(faster)}." if faster else " No system takes less."
        made.append(Finding(text))
    return made


def _latency(leaving: int, found: Found) -> list[Finding]:
    """In process a round costs nothing but its bytes; elsewhere it does, and the systems that need many pay for each."""
    made = []
    for ours in (name for name in EXACT if name in found):
        mine, my_rounds = (_mean(_steps(found, ours, leaving), part) for part in ("seconds", "rounds"))
        for name in (one for one in _ITERATIVE if one in found):
            theirs, rounds = (_mean(_steps(found, name, leaving), part) for part in ("seconds", "rounds"))
            if mine > theirs and rounds > my_rounds:
                bound = (mine - theirs) / (rounds - my_rounds)
                text = (
                    f"Where a round takes {seconds_text(bound)} longer than in process, or more, a step of {entry_of(ours).title}"
                )
                made.append(Finding(f"{text}, is faster than one of {entry_of(name).title} ({rounds:.4g} rounds)."))
    return made


def _split(leaving: int, clients: int, found: Found) -> list[Finding]:
    steps = _steps(found, "a_exact", leaving)
    if not steps:
        return []
    whole, client, server, rest = (_mean(steps, f"{part}seconds") for part in ("", "client_", "server_", "orchestration_"))
    return [
        Finding(
            f"A step of Variant A, exact, takes {whole:.3g} s in process: {client:.3g} s at the {clients} clients together "
            f"({client / clients:.2g} s each), {server:.3g} s at the server, {rest:.3g} s of orchestration. The paper: about "
            f"{published.CHUNK_SECONDS:.0f} s, of which {published.CHUNK_CLIENT_SECONDS} s at clients and most of the rest "
            "orchestration on Flower. Its features are narrower (768), and its machine has GPUs."
        )
    ]


def _accuracy(leaving: int, found: Found) -> list[Finding]:
    if not {"central", "a_exact"} <= set(found):
        return []
    means = {name: [_accurate(dones, step) for step in range(leaving)] for name, dones in found.items()}
    gap = max(abs(a - b) for name in EXACT if name in means for a, b in zip(means[name], means["central"], strict=True))
    made = [Finding(f"At every step the exact variants are within 0.001 of central ridge's accuracy ({gap:.4f}).", gap <= 1e-3)]
    for name in (one for one in _ITERATIVE if one in means):
        gains = [a - b for a, b in zip(means["a_exact"], means[name], strict=True)]
        ahead = sum(gain > 0 for gain in gains)
        made.append(
            Finding(
                f"Variant A, exact, is more accurate than {entry_of(name).title} at {ahead} of {leaving} steps, by "
                f"{min(gains):+.4f} to {max(gains):+.4f} (the paper: at all steps, with heads trained on another objective)."
            )
        )
    return made


def _accurate(dones: Sequence[Done], step: int) -> float:
    return _average(one.result["steps"][step]["accuracy"] for one in dones)


def _steps(found: Found, name: str, first: int | None = None) -> list[Mapping[str, Any]]:
    return [step for one in found.get(name, []) for step in one.result["steps"][:first]]


def _mean(steps: Sequence[Mapping[str, Any]], name: str) -> float:
    """Of a part of the cost."""
    return _average(step["cost"][name] for step in steps)


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
