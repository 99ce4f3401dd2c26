"""Words and sentences that several kinds of evidence share; a `VerifiedFile` is what one file
shows.

Bundles use them, and the page of a bundle must not change: see `page` before changing one. Text of
unknown origin is made harmless before it is shown (`shown`). The module is light, because every
command that shows anything imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expunge import kinds
from expunge.wire.schema import UNDISCLOSED

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

# Controls, invisible and direction characters, half surrogate pairs, tags. Written out rather than
# asked of Python's character database, which differs between versions: the page of a bundle must
# not.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff"
    "\U000e0000-\U000e0fff]"
)


def moment(time: str) -> str:
    """2026-11-15T09:30:00Z as "15 November 2026, 09:30:00 UTC"."""
    return f"{int(time[8:10])} {_MONTHS[int(time[5:7]) - 1]} {time[:4]}, {time[11:19]} UTC"


def shown(text: str) -> str:
    """`text` with every character that has no honest picture of its own written out as its
    number.
    """
    return _HARMFUL.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", text)


def samples(count: int) -> str:
    """As in "no samples", "1 sample", "2 samples"."""
    return number(count, "sample")


def number(count: int, noun: str) -> str:
    """A count with its noun, for nouns with a regular plural."""
    plural = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count or 'no'} {noun if count == 1 else plural}"


def listed(parts: Sequence[str]) -> str:
    """As in "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def sum_of(count: int, fewest: int) -> str:
    """Of how many samples a sum is, and whether these are fewer than the federation asks for; it
    asks for none by 0, or if that is not known.
    """
    if not count < fewest:
        return samples(count)
    return (
        f"{samples(count)}, fewer than the {fewest} that a change waits for: a sum over so few can "
        "reveal them"
    )


STANDS = (
    "It cannot be taken back: every later checkpoint that is consistent with this one contains it."
)


@dataclass(frozen=True)
class VerifiedFile:
    """The result of `verify`: what a file of evidence shows, in plain words. Every string is safe
    to print.

    Attributes
    ----------
    kind : str
        `"receipt"`, `"certificate"`, `"head"`, `"bundle"`, `"passage"`, `"result"`, `"rotation"` or
        `"checkpoint"`.
    title : str
        One line that names the file's subject.
    facts : list of (str, str)
        Names and values that the file holds, such as `("Added", "2 samples")`.
    proved : list of str
        What the server has signed, in sentences; each holds under the assumptions.
    assumptions : list of str
        What the proved sentences rest on, such as that the key is the server's own.
    not_proved : list of str
        What the file does not show, such as that no copy was kept.

    Examples
    --------
    >>> from expunge.crypto import Envelope, SigningKey
    >>> from expunge.evidence import Checkpoint, verify
    >>> server = SigningKey(bytes(32))
    >>> checkpoint = Checkpoint("0" * 32, 7, bytes(32), "2026-11-15T09:30:00Z")
    >>> file = Envelope.signed("checkpoint", checkpoint.to_json(), server).to_bytes()
    >>> finding = verify(file, server.public)
    >>> finding.kind, finding.title
    ('checkpoint', 'Checkpoint of the audit log at 7 entries')
    >>> print(finding.proved[0])
    On 15 November 2026, 09:30:00 UTC the server signed that its audit log had this root at this
    size.
    """

    kind: str
    title: str
    facts: list[tuple[str, str]]
    proved: list[str]
    assumptions: list[str]
    not_proved: list[str]


SERVER_KEY = (
    "The public key that this was verified with is the server's own, and was obtained "
    "from it by a way that can be trusted."
)
CRYPTOGRAPHY = (
    "SHA-256 has no collisions that anyone can find, and Ed25519 signatures cannot be forged."
)
HONEST_CLIENTS = (
    "Each client searched its own store honestly. That a client subtracts what it added is checked "
    "by the commitments made when samples were added, and by audits; whether it knew all samples "
    "of the subject is its own responsibility."
)
HONEST_SEARCH = (
    "Each client searched its own store honestly; whether it knew all samples of the "
    "subject is its own responsibility."
)
MASKED_CLIENTS = (
    "Clients subtract what they added. Under secure aggregation the server sees sums over many "
    "clients and can check no single one; an audit adds up, in the same way, what every client "
    "recomputes from its own store. Arithmetic alone could not tell."
)
SOFTWARE = "Between two audits, the server's software computed what the log says that it computed."
MULTISET_HASH = (
    "Nobody can find two sets of samples with one multiset hash (LtHash with 1,024 lanes of 16 "
    "bits, expanded by SHAKE-128)."
)
ONE_LOG = (
    "The server shows the same log to everybody; clients and auditors check this by "
    "comparing checkpoints."
)

NOT_THE_BACKBONE = (
    "Anything about the backbone: the head forgets; a backbone trained on the data does not."
)
NO_COPIES = (
    "That no copy was kept: of samples outside the clients' stores, or of statistics, heads and "
    "backups outside the server's store."
)
SEEN_SUMS = (
    "That the server did not see what was deleted: it sees the ledger before and after each round. "
    "Masks hide whose samples a change is about, not what they are; the sum of few samples can be "
    "solved for them."
)
OLD_HEADS = "That heads published earlier, which others may have downloaded, are no longer in use."
SUMS_SINCE = (
    "That the server's sums followed the changes since its last digest of all sums: the log has "
    "another one at the next fold (an entry of kind 'digested'), and an audit compares the sums "
    "with what the clients hold."
)
BOUND = {
    "sums": "all sums of the ledger, integer by integer",
    "samples": "which samples are live, by client, and the sums at an earlier place of the log",
}


def bound_by(binds: kinds.Bound, base: int | None = None) -> str:
    """What the digest of the ledger holds the server to, and what of that others can see. `base` is
    the size of the log at the earlier place, if it is known.
    """
    if binds == "sums":
        return (
            "By the digest of the ledger the server is bound to every integer of its sums: it can "
            "open the digest, as long as it has the salt, to these and to no others."
        )
    place = "at an earlier place" if base is None else f"as they were after {number(base, 'entry')}"
    return (
        "By the digest of the ledger the server is bound to which samples are live, and to its "
        f"sums {place} of the log; to the sums after this change, by the changes that the log has "
        "in between. It can open the digest, as long as it has the salt, to these and to no others."
    )


def hash_of(binds: kinds.Bound) -> list[str]:
    """What a digest of this kind rests on beyond SHA-256."""
    return [MULTISET_HASH] if binds == "samples" else []


def sums_since(binds: kinds.Bound) -> list[str]:
    """What a digest of this kind leaves open."""
    return [SUMS_SINCE] if binds == "samples" else []


def found_in(answers: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many samples were found in all, and how many clients do not disclose it."""
    undisclosed = sum(answer["found"] == UNDISCLOSED for answer in answers)
    return sum(answer["found"] for answer in answers) + undisclosed, undisclosed


def assumptions(*, masked: bool = False) -> list[str]:
    """What a bundle or receipt rests on; `masked` where there is secure aggregation."""
    honest = [MASKED_CLIENTS, HONEST_SEARCH] if masked else [HONEST_CLIENTS]
    return [SERVER_KEY, CRYPTOGRAPHY, *honest, SOFTWARE, ONE_LOG]


def promise_of(what: str, due: str, now: str | None) -> str:
    """The server's promise to erase something at rest, as it stands now, if it is known when that
    is.
    """
    if now is None:
        return (
            f"The server promised that {what[0].lower()}{what[1:]} is erased at rest by "
            f"{moment(due)}."
        )
    if now < due:
        when = moment(due)
        return (
            f"{what} will be erased at rest by {when}; until then the server may hold it, "
            "encrypted, in its journal."
        )
    return f"{what} was due to be erased at rest by {moment(due)}."


def not_proved_by_receipt() -> list[str]:
    """What nobody should read into a receipt."""
    later = (
        "That the erasure at rest has happened: the log's entry of kind 'erased' says so, "
        "which a bundle holds."
    )
    return [NOT_THE_BACKBONE, NO_COPIES, OLD_HEADS, later]
