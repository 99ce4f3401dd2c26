"""What an operator should think of before founding a federation or amending its spec."""

from __future__ import annotations

from expunge.ridge.spec import Aggregation, Spec
from expunge.secagg import plan
from expunge.secagg.plan import share_of

_SMALL_GAMMA = 1e-12  # next to features of about 1


def of_founding(spec: Spec, *, clients: int | None = None) -> list[str]:
    """What to know about a federation of this spec; of so many clients, if that is known."""
    warnings = _small_gamma(spec)
    if spec.aggregation is not None:
        warnings += _aggregation(spec.aggregation, clients)
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
            f"Clients that send {dropped} messages can send nothing more, neither additions nor "
            "deletions, until each of them "
            f"types expunge client sync --message {kind}. Tell them before you amend"
        )
    return warnings


def _aggregation(rules: Aggregation, clients: int | None) -> list[str]:
    warnings = []
    if rules.fewest == 2:
        warnings.append(
            "A sum of two clients shows each of them the other's part. Found with --fewest 3 or "
            "more to hide clients"
        )
    if clients is not None and clients < rules.fewest:
        warnings.append(
            f"No round can be complete with {clients} clients: the rules ask for {rules.fewest}"
        )
    elif clients is not None:
        if plan(rules, clients).survivors == clients and rules.dropouts:
            warnings.append(
                f"With {clients} clients a round is aborted if any of them drops out: the rules "
                f"ask for {rules.fewest}"
            )
        withstood, asked = plan(rules, clients).colluders, share_of(rules.colluding, clients)
        if withstood < asked:
            warnings.append(
                f"With {clients} clients of which {rules.dropouts} % may drop out, a round "
                f"withstands {withstood or 'none'} that side with the server, not the {asked} that "
                f"{rules.colluding} % are: allow for fewer drop-outs, or let more in"
            )
    return warnings


def _small_gamma(spec: Spec) -> list[str]:
    if spec.gamma >= _SMALL_GAMMA:
        return []
    caution = (
        f"gamma {spec.gamma:g} is below {_SMALL_GAMMA:g}: until the samples fill every direction "
        "of the features there may be no "
        "head whose error can be bounded, and none is published then"
    )
    return [caution]
