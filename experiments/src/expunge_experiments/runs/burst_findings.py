"""What follows from the stream of `burst`: each claim with whether it holds."""

from __future__ import annotations

from collections.abc import Mapping

from expunge_experiments.markdown import bytes_text, seconds_text
from expunge_experiments.runs.base import Finding, Results
from expunge_experiments.runs.burst_tables import Timing, timing
from expunge_experiments.runs.retraining import EXACT
from expunge_experiments.systems.catalogue import entry_of

AIM = 50.0  # times faster per request than FedAvg retrain
_ITERATIVE = ("fedavg", "fats", "exactfun")
_SKIPPERS = ("fats", "exactfun")
_FURTHER = ("central", "sisa", "fedcio", "acu")
_FLOAT = ("a_float64", "b_float64")


def findings_of(requests: int, samples: int, results: Results) -> list[Finding]:
    """All of them. With fewer samples than there are, retraining is faster, and how much faster ours is is no claim."""
    process = results.where(engine="process")
    found = _timings(requests, process, "process")
    made = [*_exactness(process), *_grid(process), *_ratio(samples, found), *_rounds(found)]
    made += [one for name in _SKIPPERS if name in found for one in _skipper(name, found)]
    made += [*_others(found), *_kept(found), *_partly(found)]
    there = _timings(requests, results, "flower")
    return [*made, *_flower(there), *_same_heads(results)] if there else made


def _timings(requests: int, results: Results, engine: str) -> dict[str, Timing]:
    named = {name: timing(results, name, "deleted", requests, engine) for name in results.where(engine=engine).values("system")}
    return {name: found for name, found in named.items() if found is not None}


def _title(name: str) -> str:
    return entry_of(name).title


def _exactness(results: Results) -> list[Finding]:
    checks = [mark["equal"] for name in EXACT for done in results.where(system=name) for mark in done.result["marks"]]
    if not checks:
        return []
    text = (
        "At every mark of the stream, deletions and additions, the head of the exact variants has the digest of one solved afresh"
    )
    return [Finding(f"{text} from the retained samples: {sum(checks)} of {len(checks)} times.", all(checks))]


def _grid(results: Results) -> list[Finding]:
    deviations = [mark["deviation"] for name in EXACT for done in results.where(system=name) for mark in done.result["marks"]]
    known = [one for one in deviations if one is not None]
    if not known:
        return []
    bounds = f"{min(known):.1e} to {max(known):.1e}"
    text = f"At these marks, exact heads are {bounds} (relative Frobenius) from central ridge in float64"
    return [Finding(f"{text}: that is the rounding of float64, and of features and published weights to their grids.")]


def _ratio(samples: int, found: Mapping[str, Timing]) -> list[Finding]:
    if "fedavg" not in found:
        return []
    made = []
    for name in (one for one in EXACT if one in found):
        ratio = found["fedavg"].median / found[name].median
        text = (
            f"{_title(name)}, deletes a sample {ratio:.3g} times as fast as FedAvg retrains, in process, by medians "
            f"({seconds_text(found[name].median)} and {seconds_text(found['fedavg'].median)}; wanted: {AIM:.0f} times"
            f"{f' with all samples, not with {samples}' if samples else ''})."
        )
        made.append(Finding(text, None if samples else ratio >= AIM))
    return made


def _rounds(found: Mapping[str, Timing]) -> list[Finding]:
    ours = [rounds for name in EXACT if name in found for rounds in found[name].columns["rounds"]]
    if not ours:
        return []
    theirs = [
        f"{_title(name)} {found[name].mean('rounds'):.3g} on average, {max(found[name].columns['rounds']):.0f} at most"
        for name in _ITERATIVE
        if name in found
    ]
    beside = f" Others: {'; '.join(theirs)}." if theirs else ""
    return [Finding(f"The exact variants need one round for each request.{beside}", set(ours) == {1})]


def _skipper(name: str, found: Mapping[str, Timing]) -> list[Finding]:
    """How often a system skips, and whether it is faster than ours for that."""
    one, skipped = found[name], int(found[name].sum("skipped"))
    retrained = [seconds for seconds, skip in zip(one.columns["seconds"], one.columns["skipped"], strict=True) if not skip]
    text = f"{_title(name)} skips {skipped} of {one.count} requests"
    text += f"; the others take {seconds_text(sum(retrained) / len(retrained))} on average." if retrained else "."
    made = [Finding(text)]
    for ours in (mine for mine in EXACT if mine in found):
        median = _faster(name, one.median, ours, found[ours].median)
        total = _faster(name, one.total, ours, found[ours].total)
        made.append(
            Finding(f"In process, by median, {median}. In total, {total}. {_title(name)} skipped {skipped} of {one.count}.")
        )
    return made


def _faster(one: str, seconds: float, other: str, others: float) -> str:
    """Which of two is faster, and how much."""
    (first, fast), (second, slow) = sorted([(one, seconds), (other, others)], key=lambda item: item[1])
    ratio = f"{slow / fast:.3g} times as fast as" if fast > 0 else "faster than"
    comma = "," if "," in _title(first) else ""
    return f"{_title(first)}{comma} is {ratio} {_title(second)} ({seconds_text(fast)} and {seconds_text(slow)})"


def _others(found: Mapping[str, Timing]) -> list[Finding]:
    """Further systems that are faster than ours are named; and what exactness costs."""
    made = []
    for ours, rounded in zip(EXACT, _FLOAT, strict=True):
        if ours not in found:
            continue
        mine = found[ours].median
        rest = {name: found[name].median for name in _FURTHER if name in found}
        faster = [f"{_title(name)} ({seconds_text(median)})" for name, median in rest.items() if median < mine]
        if faster:
            text = f"Also faster in process than {_title(ours)} ({seconds_text(mine)}), by median: {', '.join(faster)}."
            made.append(Finding(text))
        if rounded in found:
            ratio, theirs = mine / found[rounded].median, seconds_text(found[rounded].median)
            text = f"{_title(ours)}, takes {ratio:.3g} times as long as the same in float64 ({seconds_text(mine)} and {theirs})"
            made.append(Finding(f"{text}, which is the price of exactness."))
    return made


def _kept(found: Mapping[str, Timing]) -> list[Finding]:
    sizes = [f"{_title(name)} {bytes_text(max(one.columns['checkpoint_bytes']))}" for name, one in found.items()]
    return [Finding(f"Kept besides samples, at server and clients: {', '.join(sizes)}.")] if sizes else []


def _partly(found: Mapping[str, Timing]) -> list[Finding]:
    partly = [f"{_title(name)} {one.count} of {one.wanted}" for name, one in found.items() if not one.complete]
    if not partly:
        return []
    return [Finding(f"Timed in part, and extrapolated (~): {', '.join(partly)}. All others were timed in full.")]


def _flower(found: Mapping[str, Timing]) -> list[Finding]:
    made = []
    for ours in (one for one in EXACT if one in found):
        mine = found[ours].median
        text = f"On Flower simulation, {_title(ours)}, deletes a sample in {seconds_text(mine)} by median."
        for name in (one for one in _ITERATIVE if one in found):
            theirs = found[name].median
            text += f" {_title(name)}: {seconds_text(theirs)}, {theirs / mine:.3g} times as long."
        made.append(Finding(text))
        rounds = set(found[ours].columns["rounds"])
        made.append(Finding(f"On Flower simulation, {_title(ours)}, needs one round for each request.", rounds == {1}))
    return made


def _same_heads(results: Results) -> list[Finding]:
    """Bit for bit the same heads on both engines: a law for the exact variants, worth knowing of the others."""
    made = []
    for done in results.where(engine="flower"):
        name = done.key["system"]
        here = [one for other in results.where(engine="process", system=name) for one in other.result["digests"]]
        pairs = list(zip(here, done.result["digests"], strict=False))
        if pairs:
            same = sum(a == b for a, b in pairs)
            text = f"{_title(name)}: {same} of {len(pairs)} heads on Flower are bit for bit those in process."
            made.append(Finding(text, same == len(pairs) if name in EXACT else None))
    return made
