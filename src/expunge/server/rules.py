"""The rules by which a client's request changes the ledger: pure, with no I/O, clock or randomness.

An `Account` is what the ledger knows of one client and can check at once: how many samples of which
labels, and each feature's sum of squares. `judge` takes a request from one account to the next or
refuses it, by code and reason; nothing is changed by asking.

The rules, in order: the sequence number is the next one (`require_next`); the spec is the
federation's and the kind of message is allowed (`require_spec`, before the message is read); every
commitment is named once, those added are not live, those deleted are; rows open their commitments;
counts agree; what would be left is not impossible; a client that leaves leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from expunge.errors import RefusedError
from expunge.exact import wide
from expunge.frame import Format
from expunge.kinds import ClientStatus
from expunge.ridge.plausibility import count_problem
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.wire.commitment import commitments
from expunge.wire.messages import FactorPart, GramPart, Message, Part, RowsPart
from expunge.wire.request import Request
from expunge.wire.schema import UNDISCLOSED

Live = Callable[[Sequence[bytes]], set[bytes]]  # which of these commitments are live

_ACCOUNT = Format(
    "an account of a client", b"", "QII", remedy="rebuild the server from its clients"
)


@dataclass(frozen=True, eq=False)
class Account:
    """What the ledger knows of one client: counts, and the diagonal of its statistics."""

    count: int
    class_counts: NDArray[np.int64]
    diagonal: wide.Wide

    @classmethod
    def empty(cls, spec: Spec) -> Account:
        """The account of a client with no samples."""
        classes = spec.columns if spec.is_classification else 0
        return cls(0, np.zeros(classes, dtype=np.int64), wide.zeros((spec.width,)))

    @classmethod
    def of(cls, statistics: Statistics) -> Account:
        """The account of a client with these statistics."""
        return cls.empty(statistics.spec).changed(GramPart(statistics), 1)

    def to_bytes(self) -> bytes:
        """For the store; sealed there, for the difference of two accounts shows what was
        deleted.
        """
        header = _ACCOUNT.begin(self.count, len(self.class_counts), self.diagonal.shape[1])
        return header + self.class_counts.astype("<i8").tobytes() + wide.to_bytes(self.diagonal)

    @classmethod
    def from_bytes(cls, data: bytes) -> Account:
        """The inverse of `to_bytes`."""
        (count, classes, width), reader = _ACCOUNT.open(data)
        reader.require(8 * classes + 16 * width)
        counts = reader.array("<i8", (classes,), "the class counts").astype(np.int64)
        return cls(count, counts, wide.from_bytes(reader.rest(), (width,)))

    def under(self, spec: Spec) -> Account:
        """The same account when labels have been appended."""
        more = (spec.columns if spec.is_classification else 0) - len(self.class_counts)
        return (
            replace(self, class_counts=np.pad(self.class_counts, (0, more))) if more > 0 else self
        )

    def changed(self, part: Part | None, sign: int) -> Account:
        """The account after samples were added (sign 1) or deleted (sign -1), with no opinion on
        whether that can be.
        """
        if part is None:
            return self
        diagonal = self.diagonal
        if not isinstance(part, FactorPart):
            diagonal = (wide.add if sign > 0 else wide.subtract)(self.diagonal, part.diagonal())
        counts = self.class_counts + sign * part.class_counts
        return replace(
            self, count=self.count + sign * part.count, class_counts=counts, diagonal=diagonal
        )

    def after(self, message: Message) -> Account:
        """The account after a whole message."""
        return self.changed(message.added, 1).changed(message.deleted, -1)


def require_next(last: int, sequence: int) -> None:
    """Refuse a sequence number that is not the one after `last`."""
    if sequence != last + 1:
        raise RefusedError(
            "sequence-gap" if sequence > last else "sequence-reused",
            f"request number {sequence} was offered where number {last + 1} is expected"
            + (
                "; offer the missing ones first"
                if sequence > last
                else "; that number has been used, by another request or by one whose receipt the "
                "next one showed to have arrived"
            ),
            expected=last + 1,
        )


def require_standing(client: str, status: ClientStatus, *, reset: bool) -> None:
    """Refuse a client that is gone or barred, or fails to reset when asked."""
    if status == "gone":
        raise RefusedError(
            "gone", f"{client} has left this federation, or was forgotten: enrol under another name"
        )
    if status == "barred":
        raise RefusedError(
            "not-allowed",
            f"the arbiter found that {client} sent something false: it takes part in no round. "
            "The operator can forget it",
        )
    if status == "must-rejoin" and not reset:
        raise RefusedError(
            "must-rejoin",
            f"the server was restored, and asks {client} to send everything it holds: sync",
        )


def require_spec(spec: Spec, request: Request) -> None:
    """Refuse a request of another federation's spec, of an outdated one, or of a kind that is not
    allowed.
    """
    header = request.header
    if header.data_digest != spec.data_digest:
        raise RefusedError(
            "wrong-spec",
            f"the request was made under the data spec {header.data_digest[:16]}…, but this "
            "federation's is "
            f"{spec.data_digest[:16]}…: dim, grid, intercept and backbone must be the same",
        )
    if header.labels_digest != spec.labels_digest:
        raise RefusedError(
            "wrong-spec", "the labels have been amended since: sync, then offer the changes again"
        )
    if header.message not in ("none", *spec.messages):
        raise RefusedError(
            "not-allowed",
            (
                f"messages of kind {header.message!r} are not allowed here; the spec allows "
                f"{', '.join(spec.messages)}"
            ),
        )


def require_reset(spec: Spec, request: Request) -> None:
    """Refuse a reset of a client that takes part, where its share of the ledger cannot be taken
    out, or is a whole group's.
    """
    if not spec.is_exact:
        raise RefusedError(
            "not-allowed",
            "in float64 a share that is taken out and put back leaves another ledger: have the "
            f"operator forget {request.header.client}, and enrol a new client",
        )
    if request.header.message == "group":
        raise RefusedError(
            "not-allowed",
            f"{request.header.client} takes part, for a whole group: it cannot replace everything",
        )


def judge(spec: Spec, account: Account, request: Request, message: Message, live: Live) -> Account:
    """The client's account after this request, whose number and spec have been checked;
    RefusedError if it cannot be. A reset is judged as if nothing were there.
    """
    if request.header.reset:
        account, live = Account.empty(spec), _nothing
    _require_commitments(request, live)
    if message.kind != "group":  # whose samples have been committed to within the group
        for part, named in ((message.added, request.added), (message.deleted, request.deleted)):
            _require_part(spec, part, named)
    after = account.after(message)
    problem = _problem(spec, after)
    if problem is not None:
        raise RefusedError(
            "impossible",
            f"{problem}. Nothing was changed: delete only what this client added, as it was added",
        )
    if request.header.leave and after.count:
        raise RefusedError(
            "wrong-counts",
            f"a client that leaves must delete everything, but {after.count} samples would remain",
        )
    hidden = {answer.found == UNDISCLOSED for answer in request.header.orders}
    if (
        not hidden <= {spec.is_masked} and message.kind != "group"
    ):  # within a group there may be secure aggregation
        raise RefusedError(
            "wrong-counts",
            "how many samples were found is disclosed, except under secure aggregation",
        )
    deletions = 0 if spec.is_masked else sum(answer.found for answer in request.header.orders)
    if (
        deletions > request.header.deleted
        and message.kind != "group"  # which may answer when all of its clients have
        and not request.header.reset  # which leaves out what it deletes
    ):
        raise RefusedError(
            "wrong-counts",
            (
                f"orders are answered by {deletions} deletions, but the request has "
                f"{request.header.deleted}"
            ),
        )
    return after


def _nothing(_: Sequence[bytes]) -> set[bytes]:
    """No commitment is live."""
    return set()


def _require_commitments(request: Request, live: Live) -> None:
    named = (*request.added, *request.deleted)
    if len(set(named)) < len(named):
        raise RefusedError(
            "wrong-counts",
            "a commitment is named twice in one request; each sample has one of its own",
        )
    live_commitments = live(named) if named else set()
    again = [commitment for commitment in request.added if commitment in live_commitments]
    if again:
        raise RefusedError(
            "already-live",
            f"{len(again)} of the samples to add are there already: {again[0].hex()[:16]}…",
        )
    missing = [commitment for commitment in request.deleted if commitment not in live_commitments]
    if missing:
        raise RefusedError(
            "not-live",
            (
                f"{len(missing)} of the samples to delete are not there, or not this client's: "
                f"{missing[0].hex()[:16]}…"
            ),
        )


def _require_part(spec: Spec, part: Part | None, named: Sequence[bytes]) -> None:
    if (part.count if part is not None else 0) != len(named):
        raise RefusedError(
            "wrong-counts",
            f"{len(named)} commitments are named for {part.count if part else 0} samples",
        )
    if isinstance(part, RowsPart) and commitments(spec, part.salts, part.rows) != list(named):
        raise RefusedError(
            "not-opened",
            "a row does not open its commitment: it is not the sample that was committed to",
        )


def _problem(spec: Spec, after: Account) -> str | None:
    """Why there can be no such account; None if counts and diagonal do not show it."""
    problem = count_problem(spec, after.count, after.class_counts.tolist())
    if problem is not None or not spec.is_exact:
        return problem
    if after.count == 0:
        return (
            "there would be no samples, but their squares would not be zero"
            if after.diagonal.any()
            else None
        )
    negative = np.flatnonzero(after.diagonal[-1].view(np.int64) < 0)
    if negative.size:
        return f"the sum of squares of feature {int(negative[0])} would be negative"
    low, high = after.diagonal
    most = divmod(after.count << (2 * spec.grid.bits), 1 << 64)
    large = np.flatnonzero(
        (high > np.uint64(most[0])) | ((high == np.uint64(most[0])) & (low > np.uint64(most[1])))
    )
    if large.size:
        return (
            f"the sum of squares of feature {int(large[0])} would be more than {after.count} "
            "samples can have on this grid"
        )
    if spec.intercept and wide.to_ints(after.diagonal[:, -1:])[0] != after.count << (
        2 * spec.grid.fraction_bits
    ):
        return "the number of samples would contradict the constant feature"
    return None
