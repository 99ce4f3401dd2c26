"""Parcels as the records of Flower's messages, bit for bit."""

from __future__ import annotations

from expunge.errors import FormatError, requires_extra
from expunge.transport.flower.messages import Payload

with requires_extra("flower", "Flower"):
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

MESSAGE_TYPE = "query.expunge"
ACTION = "expunge"
_NOTE, _PARTS = "expunge", "expunge.parts"
_RAW = "expunge.bytes"  # how our arrays are serialised: not at all


def to_records(parcel: Payload) -> RecordDict:
    """A parcel as records.

    Its parts are arrays, which Flower cuts into chunks, so that they may be large.
    """
    arrays = {
        str(number): Array(dtype="uint8", shape=(len(part),), stype=_RAW, data=part)
        for number, part in enumerate(parcel.parts)
    }
    return RecordDict({_NOTE: ConfigRecord({"note": parcel.note}), _PARTS: ArrayRecord(arrays)})


def from_records(records: RecordDict) -> Payload:
    """The inverse of `to_records`."""
    try:
        note, arrays = records[_NOTE]["note"], records[_PARTS]
        parts = tuple(bytes(arrays[str(number)].data) for number in range(len(arrays)))
    except (AttributeError, KeyError, TypeError) as problem:
        raise FormatError(
            "this message is not one of Expunge: its records are missing or of another kind"
        ) from problem
    if not isinstance(note, bytes):
        raise FormatError("this message is not one of Expunge: its note is not bytes")
    return Payload(note, parts)
