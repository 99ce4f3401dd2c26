"""What an operator should think of before founding a federation or amending its spec."""

from __future__ import annotations

from expunge.spec import Spec

_SMALL_GAMMA = 1e-12  # next to features of about 1


def of_founding(spec: Spec) -> list[str]:
    """What to know about a federation of this spec."""
    found = _small_gamma(spec)
    if not spec.is_exact:
        found.append(
            "This federation allows factor messages, so it computes in float64: its heads are not bit for bit those of "
            "retraining, no certificate says so, and there are no audits. Leave factor out for exact arithmetic"
        )
    return found


def of_amending(before: Spec, after: Spec) -> list[str]:
    """What to know about an amendment."""
    found = _small_gamma(after) if after.gamma != before.gamma else []
    dropped = " or ".join(kind for kind in before.messages if kind not in after.messages)
    if dropped and "gram" in after.messages:
        found.append(f"Clients that send {dropped} messages will send gram messages from their next sync on.")
    elif dropped:
        kind = after.messages[-1]
        found.append(
            f"Clients that send {dropped} messages can send nothing more, neither additions nor deletions, until each of them "
            f"types expunge client sync --message {kind}. Tell them before you amend"
        )
    return found


def _small_gamma(spec: Spec) -> list[str]:
    if spec.gamma >= _SMALL_GAMMA:
        return []
    caution = (
        f"gamma {spec.gamma:g} is below {_SMALL_GAMMA:g}: until the samples fill every direction of the features there may be no "
        "head whose error can be bounded, and none is published then"
    )
    return [caution]
