"""Whatever cannot be taken is refused with its code and a reason; nothing has changed then, and the
next good request works.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from expunge import Spec, Statistics
from expunge.errors import RefusedError
from expunge.exact import wide
from expunge.exact.blas import packed_diagonal
from expunge.server.state import Settings
from expunge.wire.messages import GramPart, Message
from expunge.wire.request import AuditAnswer, OrderAnswer
from support import commands, seeds
from support.federation import Client, Federation, make_key
from support.samples import SPEC, Sample, commitments_of, part_of, rows_of, statistics_of

OTHER = Spec(dim=SPEC.dim + 1, labels=SPEC.labels)
FRAME = 16 + 1 + 4


@pytest.fixture
def federation(tmp_path: Path):
    with Federation(tmp_path / "server", settings=Settings(largest_request=1 << 20)) as federation:
        federation.enrol("clinic").send(federation.draw(6))
        federation.enrol("lab").send(federation.draw(3), kind="gram")
        yield federation


def refused(federation: Federation, data: bytes, code: str) -> RefusedError:
    """Offer something that must be refused, and see that it left no trace."""
    refusal = commands.refused(federation, code, federation.service.request, data)
    assert len(refusal.reason) > 20
    return refusal


def goes_on(federation: Federation) -> None:
    """Good requests of all are still taken."""
    for client in federation.clients.values():
        client.send(federation.draw(1), client.retained[:1])
    federation.check()


def with_salt(sample: Sample) -> Sample:
    return Sample(sample.features, sample.target)


def rows_message(
    client: Client, samples: list[Sample], features: np.ndarray, labels: bytes
) -> bytes:
    """A rows message for adding, whose integers and labels are as given."""
    return client.request(
        samples,
        message=b"".join(one.salt for one in samples) + features.astype("<i8").tobytes() + labels,
    )


def statistics_with(entry: Callable[[Statistics], None], samples: list[Sample]) -> bytes:
    """A gram message that adds statistics after `entry` has spoilt them; their checksum is right
    all the same.
    """
    base = statistics_of(SPEC, samples)
    spoilt = Statistics.from_bytes(SPEC, base.to_bytes())
    for name in ("gram", "moment", "label_gram", "class_counts"):
        array = getattr(spoilt, name).copy()
        object.__setattr__(spoilt, name, array)
    entry(spoilt)
    return Message("gram", GramPart(spoilt)).to_bytes(SPEC)


def too_correlated(statistics: Statistics) -> None:
    """Off the diagonal more than the diagonal allows, by far: no such Gram exists, whatever else is
    in the ledger.
    """
    place = int(packed_diagonal(SPEC.width)[0]) + 1
    statistics.gram[:, place] = wide.from_ints([1 << 90])[:, 0]


class Scene(NamedTuple):
    """Where something goes wrong: at the clinic."""

    federation: Federation
    clinic: Client
    lab: Client

    def draw(self, count: int) -> list[Sample]:
        return self.federation.draw(count)

    @staticmethod
    def message(samples: list[Sample], kind: str = "rows") -> bytes:
        return Message(kind, part_of(SPEC, kind, samples)).to_bytes(SPEC)

    def deleting(self, message: bytes, count: int = 1) -> bytes:
        """A request of the clinic to delete its first samples by a Gram that may be of others."""
        return self.clinic.request(
            message_kind="gram", named=_first(self.clinic, count), message=message
        )


Bad = Callable[[Scene], bytes]

BAD: dict[str, tuple[str, Bad]] = {
    "a gap": (
        "sequence-gap",
        lambda s: s.clinic.request(s.draw(1), sequence=s.clinic.sequence + 2),
    ),
    "a gap of a lifetime": (
        "sequence-gap",
        lambda s: s.clinic.request(s.draw(1), sequence=1 << 53),
    ),
    "an old number with other content": (
        "sequence-reused",
        lambda s: s.clinic.request(s.draw(1), sequence=1),
    ),
    "number 0": ("malformed", lambda s: s.clinic.request(s.draw(1), sequence=0)),
    "a key of its own": ("bad-signature", lambda s: s.clinic.request(s.draw(1), key=make_key())),
    "in another's name": (
        "bad-signature",
        lambda s: s.clinic.request(s.draw(1), client=s.lab.name, sequence=s.lab.sequence + 1),
    ),
    "by nobody": ("unknown-actor", lambda s: s.clinic.request(s.draw(1), client="nobody")),
    "by the operator": (
        "not-allowed",
        lambda s: s.clinic.request(s.draw(1), client="operator", key=s.federation.operator.key),
    ),
    "another federation": (
        "wrong-federation",
        lambda s: s.clinic.request(s.draw(1), federation="0" * 32),
    ),
    "another data spec": (
        "wrong-spec",
        lambda s: s.clinic.request(s.draw(1), data_digest=OTHER.data_digest),
    ),
    "other labels": (
        "wrong-spec",
        lambda s: s.clinic.request(s.draw(1), labels_digest=SPEC.with_labels("fox").labels_digest),
    ),
    "a kind that the spec does not allow": (
        "not-allowed",
        lambda s: s.clinic.request(
            named=(commitments_of(SPEC, s.draw(1)), []), message_kind="factor", message=b""
        ),
    ),
    "changes without a message": (
        "malformed",
        lambda s: s.clinic.request(named=(commitments_of(SPEC, s.draw(1)), [])),
    ),
    "a delete of what was never there": ("not-live", lambda s: s.clinic.request((), s.draw(1))),
    "a delete of what was never there, by gram": (
        "not-live",
        lambda s: s.clinic.request((), s.draw(1), "gram"),
    ),
    "a delete of another's": ("not-live", lambda s: s.clinic.request((), s.lab.retained[:1])),
    "an add of what is there": ("already-live", lambda s: s.clinic.request(s.clinic.retained[:2])),
    "a sample twice": ("wrong-counts", lambda s: s.clinic.request(s.clinic.retained[:1] * 2)),
    "a sample deleted twice": (
        "wrong-counts",
        lambda s: s.clinic.request((), s.clinic.retained[:1] * 2),
    ),
    "a sample added and deleted": (
        "wrong-counts",
        lambda s: s.clinic.request(s.clinic.retained[:1], s.clinic.retained[:1]),
    ),
    "another salt": (
        "not-opened",
        lambda s: s.clinic.request(
            (),
            [with_salt(s.clinic.retained[0])],
            named=([], commitments_of(SPEC, s.clinic.retained[:1])),
        ),
    ),
    "another row": (
        "not-opened",
        lambda s: s.clinic.request(
            (),
            [
                Sample(
                    s.clinic.retained[0].features * 2,
                    s.clinic.retained[0].target,
                    s.clinic.retained[0].salt,
                )
            ],
            named=_first(s.clinic),
        ),
    ),
    "another label": (
        "not-opened",
        lambda s: s.clinic.request(
            (),
            [
                Sample(
                    s.clinic.retained[0].features,
                    (s.clinic.retained[0].target + 1) % 3,
                    s.clinic.retained[0].salt,
                )
            ],
            named=_first(s.clinic),
        ),
    ),
    "rows in another order": (
        "not-opened",
        lambda s: s.clinic.request(
            (), s.clinic.retained[:2], named=([], commitments_of(SPEC, s.clinic.retained[1::-1]))
        ),
    ),
    "more samples than the header says": (
        "malformed",
        lambda s: s.clinic.request(s.draw(2), says={"added": 1}),
    ),
    "fewer samples than the header says": (
        "malformed",
        lambda s: s.clinic.request(s.draw(1), says={"added": 2}),
    ),
    "more samples than there are": (
        "malformed",
        lambda s: s.clinic.request(s.draw(1), says={"added": 1 << 52}),
    ),
    "statistics of more than is named": (
        "malformed",
        lambda s: s.clinic.request(
            (one := s.draw(1)), kind="gram", message=s.message([*one, *s.draw(1)], "gram")
        ),
    ),
    "statistics of another spec": (
        "malformed",
        lambda s: s.clinic.request(
            s.draw(1),
            kind="gram",
            message=struct.pack("<Q", 99) + Statistics.of(OTHER, np.ones((1, 5)), [0]).to_bytes(),
        ),
    ),
    "garbage for statistics": (
        "malformed",
        lambda s: s.clinic.request(
            s.draw(1), kind="gram", message=struct.pack("<Q", 64) + bytes(range(64))
        ),
    ),
    "a length beyond all bounds": (
        "malformed",
        lambda s: s.clinic.request(s.draw(1), kind="gram", message=b"\xff" * 8),
    ),
    "a Gram that no samples have": (
        "impossible",
        lambda s: s.clinic.request(
            (one := s.draw(1)), kind="gram", message=statistics_with(too_correlated, one)
        ),
    ),
    "garbage for rows": (
        "malformed",
        lambda s: s.clinic.request(s.draw(1), message=seeds.chance().randbytes(32 + 8 * 4 + 5)),
    ),
    "bytes left over": (
        "malformed",
        lambda s: s.clinic.request(
            (one := s.draw(1)),
            message=Message("rows", part_of(SPEC, "rows", one)).to_bytes(SPEC) + b"\0",
        ),
    ),
    "a feature beyond the grid": (
        "malformed",
        lambda s: rows_message(s.clinic, s.draw(1), np.array([[1 << 42, 0, 0, 0]]), bytes(5)),
    ),
    "the least integer there is": (
        "malformed",
        lambda s: rows_message(s.clinic, s.draw(1), np.array([[-(1 << 63), 0, 0, 0]]), bytes(5)),
    ),
    "a label beyond the spec's": (
        "malformed",
        lambda s: rows_message(s.clinic, s.draw(1), np.zeros((1, 4)), b"\0" + struct.pack("<I", 3)),
    ),
    "a target beyond the grid": (
        "malformed",
        lambda s: rows_message(
            s.clinic, s.draw(1), np.zeros((1, 4)), b"\1" + struct.pack("<qqq", 1 << 42, 0, 0)
        ),
    ),
    "the least target there is": (
        "malformed",
        lambda s: rows_message(
            s.clinic, s.draw(1), np.zeros((1, 4)), b"\1" + struct.pack("<qqq", -(1 << 63), 0, 0)
        ),
    ),
    "targets of no known form": (
        "malformed",
        lambda s: rows_message(s.clinic, s.draw(1), np.zeros((1, 4)), b"\2" + bytes(4)),
    ),
    "a Gram larger than what is there": (
        "impossible",
        lambda s: s.deleting(_others(s.clinic, 30.0, 0)),
    ),
    "a Gram of a label that is not there": (
        "impossible",
        lambda s: s.deleting(_others(s.clinic, 0.1, 1, count=6), 6),
    ),
    "everything, with a Gram that is not its own": (
        "impossible",
        lambda s: s.deleting(_twisted(s.clinic.retained), 6),
    ),
    "a leave that leaves samples": (
        "wrong-counts",
        lambda s: s.clinic.request((), s.clinic.retained[:2], leave=True),
    ),
    "an order that is not there": (
        "unknown-order",
        lambda s: s.clinic.request(orders=(OrderAnswer("0" * 32, 0),)),
    ),
    "an audit that is not there": (
        "unknown-audit",
        lambda s: s.clinic.request(audits=(AuditAnswer("0" * 32, "0" * 64, 0),)),
    ),
    "an audit with changes": (
        "not-allowed",
        lambda s: s.clinic.request(s.draw(1), audits=(AuditAnswer("0" * 32, "0" * 64, 0),)),
    ),
    "a reset under a number to come": (
        "sequence-gap",
        lambda s: s.clinic.request(s.draw(1), reset=True, sequence=40),
    ),
    "too many bytes": ("too-large", lambda s: s.clinic.request(s.draw(1)) + bytes(1 << 20)),
    "nothing": ("malformed", lambda _: b""),
    "another kind of file": ("malformed", lambda _: b"expunge\0receipt\0" + bytes(200)),
    "another version": (
        "malformed",
        lambda s: s.clinic.request(s.draw(1)).replace(b"request\0\1", b"request\0\2", 1),
    ),
    "a header without end": (
        "malformed",
        lambda _: b"expunge\0request\0\1\xff\xff\xff\xff" + bytes(5000),
    ),
}


def _first(client: Client, count: int = 1) -> tuple[list[bytes], list[bytes]]:
    return [], commitments_of(SPEC, client.retained[:count])


def _others(client: Client, size: float, turn: int, count: int = 1) -> bytes:
    """A gram message that deletes the first samples of a client, made larger and with another
    label.
    """
    others = [
        Sample(one.features * np.float32(size), (one.target + turn) % 3)
        for one in client.retained[:count]
    ]
    return Message("gram", None, GramPart(statistics_of(SPEC, others))).to_bytes(SPEC)


def _twisted(samples: list[Sample]) -> bytes:
    """Counts and diagonal of these samples, but one feature of one of them has its sign turned:
    only the whole share tells.
    """
    turned = samples[0].features.copy()
    turned[0] *= -1
    other = [Sample(turned, samples[0].target), *samples[1:]]
    return Message("gram", None, GramPart(statistics_of(SPEC, other))).to_bytes(SPEC)


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_taken_is_refused_and_leaves_no_trace(
    federation: Federation, case: str
) -> None:
    code, make = BAD[case]
    data = make(Scene(federation, federation.clients["clinic"], federation.clients["lab"]))
    refused(federation, data, code)
    refused(federation, data, code)  # again, since nothing has changed
    goes_on(federation)


def test_a_refusal_says_what_is_expected(federation: Federation) -> None:
    client = federation.clients["clinic"]
    gap = refused(federation, client.request(federation.draw(1), sequence=9), "sequence-gap")
    assert gap.details["expected"] == client.sequence + 1
    assert "number 2 is expected" in gap.reason


def test_a_request_may_be_repeated_at_will(federation: Federation) -> None:
    client = federation.clients["clinic"]
    sample = federation.draw(1)
    data = client.request(sample, client.retained[:2])
    answer = federation.service.request(data)
    client.settled(answer, sample, client.retained[:2])
    before = federation.dump()
    assert federation.service.request(data) == answer
    federation.fold()
    federation.reopen()
    assert federation.service.request(data) == answer
    assert federation.service.request(data) == answer
    assert federation.dump()["answers"] == before["answers"]
    assert client.send(federation.draw(1)).sequence == 3
    refused(federation, data, "sequence-reused")  # the next one showed that its receipt is there
    federation.check()


def test_requests_that_come_in_another_order_are_taken_when_their_turn_comes(
    federation: Federation,
) -> None:
    client = federation.clients["clinic"]
    one, two = federation.draw(1), federation.draw(1)
    first = client.request(one)
    client.sequence += 1
    second = client.request(two)
    client.sequence -= 1
    refused(federation, second, "sequence-gap")
    client.settled(federation.service.request(first), one)
    client.settled(federation.service.request(second), two)
    federation.check()


def test_another_request_under_a_used_number_is_refused_though_it_would_do(
    federation: Federation,
) -> None:
    client = federation.clients["clinic"]
    sample = federation.draw(1)
    first, again = (
        client.request(sample),
        client.request(sample),
    )  # the same change under another nonce
    client.settled(federation.service.request(first), sample)
    refused(federation, again, "sequence-reused")
    goes_on(federation)


def test_a_request_cut_off_at_any_byte_is_malformed(federation: Federation) -> None:
    client = federation.clients["clinic"]
    before = federation.dump()
    for kind in ("rows", "gram"):
        data = client.request(federation.draw(1), client.retained[:1], kind)
        for end in range(0, len(data), 1 if kind == "rows" else 7):
            with pytest.raises(RefusedError) as refusal:
                federation.service.request(data[:end])
            assert refusal.value.code == "malformed", end
    assert federation.dump() == before
    goes_on(federation)


def test_a_request_with_any_byte_altered_is_refused(federation: Federation) -> None:
    client, rng = federation.clients["clinic"], seeds.chance()
    before, codes = federation.dump(), set()
    data = client.request(federation.draw(1), client.retained[:1])
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1 << rng.randrange(8)
        with pytest.raises(RefusedError) as refusal:
            federation.service.request(bytes(altered))
        codes.add(refusal.value.code)
    assert codes <= {"malformed", "bad-signature", "unknown-actor", "wrong-federation"}
    assert "bad-signature" in codes
    assert federation.dump() == before
    goes_on(federation)


def test_a_body_of_another_request_does_not_fit(federation: Federation) -> None:
    client = federation.clients["clinic"]
    one, two = (client.request(federation.draw(1)) for _ in range(2))
    end = FRAME + struct.unpack("<I", one[17:21])[0] + 64
    refused(federation, one[:end] + two[end:], "malformed")
    goes_on(federation)


def test_a_client_that_has_left_is_gone(federation: Federation) -> None:
    client = federation.clients["clinic"]
    receipt = client.send((), list(client.retained), leave=True)
    assert receipt.logged.entry["leave"]
    refused(federation, client.request(federation.draw(1)), "gone")
    assert client.sync()["status"] == "gone"
    del federation.clients["clinic"]
    goes_on(federation)


@pytest.mark.parametrize("place", ["request", "enrol", "sync", "command"])
def test_every_way_in_refuses_garbage(federation: Federation, place: str) -> None:
    before = federation.dump()
    rng = seeds.chance(place)
    for data in (
        b"",
        b"{}",
        b"null",
        b"[]",
        b"\xff" * 40,
        rng.randbytes(300),
        b'{"payload":1}',
        b"[" * 5000,
    ):
        with pytest.raises(RefusedError) as refusal:
            getattr(federation.service, place)(data)
        assert refusal.value.code == "malformed"
    assert federation.dump() == before


@pytest.mark.parametrize(
    ("method", "arguments", "code"),
    [
        ("entries", (-1, 3), "malformed"),
        ("entries", (3, 2), "malformed"),
        ("inclusion", (0, 999), "not-found"),
        ("inclusion", (-1, 2), "not-found"),
        ("inclusion", (2, 2), "not-found"),
        ("consistency", (3, 2), "not-found"),
        ("consistency", (0, 999), "not-found"),
        ("consistency", (-1, 2), "not-found"),
    ],
)
def test_the_log_answers_for_what_it_has(
    federation: Federation, method: str, arguments: tuple[int, int], code: str
) -> None:
    with pytest.raises(RefusedError) as refusal:
        getattr(federation.service, method)(*arguments)
    assert refusal.value.code == code


def test_a_nonce_keeps_equal_requests_apart(federation: Federation) -> None:
    client = federation.clients["clinic"]
    sample = federation.draw(1)
    assert client.request(sample) != client.request(sample)
    nonce = secrets.token_hex(32)
    assert client.request(sample, nonce=nonce) == client.request(sample, nonce=nonce)
    assert len(rows_of(SPEC, sample)) == 1
