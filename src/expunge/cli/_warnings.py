"""What an operator should think of before founding a federation or amending its spec."""

from __future__ import annotations

from expunge.ridge.spec import Aggregation, Spec, recommended_fewest_samples
from expunge.secagg import plan
from expunge.secagg.plan import share_of
from expunge.secagg.schedule import DAY, duration_text

_RARE = 14 * DAY
_SMALL_GAMMA = 1e-12  # next to features of about 1


def of_founding(spec: Spec, *, clients: int | None = None) -> list[str]:
    """What to know about a federation of this spec, with this many clients if known."""
    warnings = _small_gamma(spec)
    if spec.aggregation is not None:
        warnings += _aggregation(spec.aggregation, clients)
    if spec.shows_only_sums:
        warnings += _few_samples(spec)
    if not spec.is_exact:
        warnings.append(
            "This federation allows factor messages, so it computes in float64: its heads are not "
            "bit for bit those of retraining, no certificate says so, and there are no audits. "
            "Leave factor out for exact arithmetic"
        )
    return warnings


def of_amending(before: Spec, after: Spec) -> list[str]:
    """What to know about an amendment."""
    warnings = _small_gamma(after) if after.gamma != before.gamma else []
    dropped = " or ".join(kind for kind in before.messages if kind not in after.messages)
    if dropped and "gram" in after.messages:
        warnings.append(
            f"Clients that send {dropped} messages will send gram messages from their next sync on."
        )
    elif dropped:
        kind = after.messages[-1]
        warnings.append(
            f"Clients that send {dropped} messages can send nothing, neither additions nor "
            f"deletions, until each runs expunge client sync --message {kind}. Tell them before "
            "you amend"
        )
    return warnings


def _aggregation(rules: Aggregation, clients: int | None) -> list[str]:
    warnings = []
    if rules.every > _RARE:
        warnings.append(
            f"Rounds every {duration_text(rules.every)} are rare: an erasure order waits for one, "
            "and for the next if too few clients come. The usual deadline is 30 days"
        )
    if rules.fewest == 2:
        warnings.append(
            "From a sum of two clients, each can compute the other's part. Use --fewest 3 or "
            "more to hide clients"
        )
    if not rules.arbiter:
        warnings.append(
            "This federation has no arbiter: if a client sends false statistics, those summed up "
            "with it wait until the operator finds out who it was, and forgets it. Name one with "
            "--arbiter (expunge arbiter create)"
        )
    if clients is not None and clients < rules.fewest:
        warnings.append(
            f"No round can complete with {clients} clients: the rules require {rules.fewest}"
        )
    elif clients is not None:
        spare, dropouts = (
            clients - plan(rules, clients).survivors,
            share_of(rules.dropouts, clients),
        )
        if spare < dropouts:
            warnings.append(
                f"With {clients} clients a round is aborted if "
                f"{'any of them drops' if not spare else f'more than {spare} of them drop'} out, "
                f"not {dropouts} ({rules.dropouts} %): among so few, more are needed to tell that "
                "the server tells all the same. Enrol more clients"
            )
    return warnings


def _few_samples(spec: Spec) -> list[str]:
    fewest = recommended_fewest_samples(spec.width)
    if spec.fewest_samples >= fewest:
        return []
    size = f"of {spec.fewest_samples:,} samples" if spec.fewest_samples else "of any size"
    caution = (
        f"Clients send changes {size}, and the server can compute samples from the exact sum of "
        f"few. For this width, --fewest-samples {fewest} (the smaller of 1024 and twice the width) "
        "lets a change wait until it is of that many samples, or a deletion in it is due. It "
        "cannot be chosen later"
    )
    return [caution]


def _small_gamma(spec: Spec) -> list[str]:
    if spec.gamma >= _SMALL_GAMMA:
        return []
    caution = (
        f"gamma {spec.gamma:g} is below {_SMALL_GAMMA:g}: until the samples span every feature "
        "direction, the error of a head may have no bound, and then no head is published"
    )
    return [caution]
