"""What the files in vectors/ hold, computed afresh: `python tests/golden.py` writes them,
test_vectors.py compares.

Everything is fixed: keys from seeds, nonces, salts and times. So that others can test a client of
their own against them, each file says what it shows and gives inputs and outputs in hexadecimal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from expunge import Grid, Spec, Statistics, solve
from expunge.crypto import Envelope, SigningKey
from expunge.evidence import Checkpoint
from expunge.evidence.digests import MultisetHash, binding, commitments_root, salted
from expunge.evidence.log import corrected_time, make_entry, read_entry
from expunge.evidence.merkle import leaf_hash, root_of
from expunge.evidence.receipt import receipt_content
from expunge.ridge.encoding import integer_rows
from expunge.solvers.float64 import FloatWoodburySolver
from expunge.wire import payloads, request
from expunge.wire.commitment import commitments
from expunge.wire.messages import FactorPart, GramPart, Message, RowsPart
from expunge.wire.request import AuditAnswer, Header, OrderAnswer
from expunge.wire.token import Token
from support.golden_secagg import aggregation, arbitration

FOLDER = Path(__file__).parent.parent / "vectors"
SPEC = Spec(dim=3, labels=("no", "yes"), gamma=0.5, grid=Grid(2, 35), backbone="sha256:example")
FLOATS = Spec(dim=3, labels=("no", "yes"), gamma=0.5, messages=("factor",))
FEATURES = np.array([[0.5, -1.25, 3.0], [2.0, 0.0, -0.75]])
LABELS = np.array([1, 0])
SALTS = (bytes(range(32)), bytes(range(32, 64)))
CLIENT, SERVER = SigningKey(bytes([1]) * 32), SigningKey(bytes([2]) * 32)
FEDERATION = "0123456789abcdef" * 2
TIME = "2026-11-15T09:30:00Z"


def header(**changes: Any) -> Header:
    fixed = {
        "federation": FEDERATION,
        "client": "hospital-a",
        "sequence": 1,
        "nonce": "ab" * 32,
        "data_digest": SPEC.data_digest,
        "labels_digest": SPEC.labels_digest,
        "message": "rows",
    }
    return Header(**(fixed | changes))


def keys() -> dict[str, Any]:
    return {
        "shows": "Ed25519 keys: private seed, public key as it stands in JSON, key id",
        "client": {
            "seed": (bytes([1]) * 32).hex(),
            "public": CLIENT.public.text,
            "id": CLIENT.public.id,
        },
        "server": {
            "seed": (bytes([2]) * 32).hex(),
            "public": SERVER.public.text,
            "id": SERVER.public.id,
        },
    }


def spec() -> dict[str, Any]:
    names = ("data_digest", "labels_digest", "head_digest", "policy_digest", "digest")
    return {
        "shows": "a spec and its digests",
        "spec": SPEC.to_dict(),
        "digests": {name: getattr(SPEC, name) for name in names},
    }


def samples() -> dict[str, Any]:
    rows = integer_rows(SPEC, FEATURES, LABELS)
    return {
        "shows": "features on the grid, and the commitments of samples with these salts",
        "features": [[value.hex() for value in row] for row in FEATURES.tolist()],
        "class_indices": LABELS.tolist(),
        "integers": [[int(value) for value in row] for row in rows.integers[:, : SPEC.dim]],
        "salts": [salt.hex() for salt in SALTS],
        "commitments": [one.hex() for one in commitments(SPEC, SALTS, rows)],
        "root": commitments_root(commitments(SPEC, SALTS, rows)),
    }


def statistics() -> dict[str, Any]:
    both = Statistics.of(SPEC, FEATURES, LABELS)
    head = solve(both)
    return {
        "shows": (
            "the statistics of both samples, and the head they fix: weights * "
            "2^publication_bits by rows"
        ),
        "statistics": both.to_bytes().hex(),
        "digest": both.digest,
        "head": [[int(value) for value in row] for row in head.integers],
        "head_digest": head.digest,
    }


def requests() -> dict[str, Any]:
    rows = integer_rows(SPEC, FEATURES, LABELS)
    named = commitments(SPEC, SALTS, rows)
    add = Message("rows", RowsPart(rows, SALTS))
    gone = GramPart(Statistics.of(SPEC, FEATURES[:1], LABELS[:1]))
    floats = FloatWoodburySolver(FLOATS)
    factor = Message(
        "factor", FactorPart(floats.message(FEATURES[:1], LABELS[:1]), 1, np.array([0, 1]))
    )
    orders, audits = (OrderAnswer("0f" * 16, 1),), (AuditAnswer("1e" * 16, "cd" * 32, 2),)
    made = {
        "rows": (header(added=2), named, [], add.to_bytes(SPEC)),
        "gram": (
            header(sequence=2, message="gram", deleted=1, orders=orders),
            [],
            named[:1],
            Message("gram", None, gone).to_bytes(SPEC),
        ),
        "none": (header(sequence=3, message="none", audits=audits), [], [], b""),
        "factor": (
            header(
                data_digest=FLOATS.data_digest,
                labels_digest=FLOATS.labels_digest,
                message="factor",
                added=1,
            ),
            named[:1],
            [],
            factor.to_bytes(FLOATS),
        ),
    }
    found = {}
    for name, (head, added, deleted, message) in made.items():
        data = request.write(head, added, deleted, message, CLIENT)
        found[name] = {"request": data.hex(), "digest": request.read(data).digest}
    return {
        "shows": "requests of the client, signed with its key; the digest is what receipts name",
        **found,
    }


def envelopes() -> dict[str, Any]:
    enrolment = {
        "federation": FEDERATION,
        "key": CLIENT.public.text,
        "name": "hospital-a",
        "spec": SPEC.data_digest,
        "token": "77" * 32,
    }
    question = {
        "actor": "hospital-a",
        "federation": FEDERATION,
        "nonce": "ef" * 32,
        "sequence": 2,
        "size": 7,
    }
    command = {
        "action": "order",
        "actor": "officer",
        "arguments": {"days": 30, "subject": "subject 7", "subjects": {"hospital-a": "patient 12"}},
        "federation": FEDERATION,
        "nonce": "aa" * 32,
        "sequence": 1,
    }
    token = Token(
        FEDERATION, "hospital-a", "client", "77" * 32, SERVER.public, ("https://example.org:8443",)
    )
    return {
        "shows": "what is said in envelopes, signed with the client's key, and an enrolment token",
        "enrolment": payloads.sign("enrolment", enrolment, CLIENT).decode(),
        "question": payloads.sign("question", question, CLIENT).decode(),
        "command": payloads.sign("command", command, CLIENT).decode(),
        "token": token.to_text(),
        "token_secret_digest": token.secret_digest,
    }


def _changed(named: list[bytes], ledger_after: str, **more: Any) -> bytes:
    """The entry of a request that added these samples."""
    return make_entry(
        "changed",
        TIME,
        client="hospital-a",
        sequence=1,
        request="12" * 32,
        message="rows",
        added=2,
        deleted=0,
        added_commitments=commitments_root(named),
        deleted_commitments=commitments_root([]),
        leave=False,
        reset=False,
        orders=[],
        audits=[],
        round=1,
        ledger_before="34" * 32,
        ledger_after=ledger_after,
        head="",
        spec=SPEC.digest,
        erased_by=TIME,
        generation=1,
        **more,
    )


def _second_version(named: list[bytes]) -> dict[str, Any]:
    """A binding of samples, and the entries that there are with it."""
    base, live = Statistics.zero(SPEC).digest, MultisetHash.of({"hospital-a": named})
    bound = binding(SALTS[0], base, live, len(named))
    ledger = salted("ledger", SALTS[1], Statistics.of(SPEC, FEATURES, LABELS).digest)
    audit: dict[str, Any] = {"audit": "56" * 16, "result": "equal", "clients": ["hospital-a"]}
    sums = {"ledger": ledger, "recomputed": ledger, "count": 2}
    entries = [
        _changed(named, bound, version=2, binds="samples", base=1),
        make_entry("digested", TIME, round=1, count=2, ledger=ledger, head=""),
        make_entry("audited", TIME, **audit, **sums, version=2, current=ledger),
    ]
    return {
        "client": "hospital-a",
        "commitments": [commitment.hex() for commitment in named],
        "multiset_hash_sha256": live.digest,
        "multiset_hash_begins": live.to_bytes()[:32].hex(),
        "without_the_first_sha256": live.without("hospital-a", named[:1]).digest,
        "base": base,
        "count": len(named),
        "salt": SALTS[0].hex(),
        "binding": bound,
        "entries": [entry.decode() for entry in entries],
    }


def _correction() -> dict[str, Any]:
    """The entry after a clock that was ahead, and times of entries that it is about."""
    entry = make_entry(
        "corrected",
        "2026-11-15T10:00:00Z",
        first=1,
        after=TIME,
        ahead=157_680_000,
        orders=[{"order": "9a" * 16, "deadline": "2026-12-15T09:58:20Z"}],
    )
    stamps = ("2031-11-14T09:58:20Z", "2026-11-15T10:00:01Z", "2026-11-15T09:59:00Z")
    return {
        "entry": entry.decode(),
        "read": {stamp: corrected_time(read_entry(entry), stamp) for stamp in stamps},
    }


def evidence() -> dict[str, Any]:
    named = commitments(SPEC, SALTS, integer_rows(SPEC, FEATURES, LABELS))
    after = salted("ledger", SALTS[0], Statistics.of(SPEC, FEATURES, LABELS).digest)
    entries = [
        make_entry("enrolled", TIME, name="hospital-a", role="client", key=CLIENT.public.text),
        _changed(named, after),
        make_entry("erased", TIME, first=1, generation=1, round=1),
    ]
    leaves = [leaf_hash(entry) for entry in entries]
    checkpoint = Checkpoint(FEDERATION, 3, root_of(leaves), TIME)
    proof = [leaves[0], leaves[2]]
    content = receipt_content(
        server=SERVER.public.id,
        entry=entries[1],
        index=1,
        proof=proof,
        checkpoint=checkpoint,
        spec=SPEC,
    )
    return {
        "shows": (
            "a log of three entries, its Merkle root (RFC 9162), and the receipt of the "
            "second, signed by the server"
        ),
        "entries": [entry.decode() for entry in entries],
        "leaves": [leaf.hex() for leaf in leaves],
        "root": checkpoint.root.hex(),
        "inclusion_proof_of_entry_1": [one.hex() for one in proof],
        "receipt": Envelope.signed("receipt", content, SERVER).to_bytes().decode(),
        "salted": {
            "kind": "ledger",
            "salt": SALTS[0].hex(),
            "digest": hashlib.sha256(b"").hexdigest(),
            "salted": salted("ledger", SALTS[0], hashlib.sha256(b"").hexdigest()),
        },
        "version_2": _second_version(named),
        "correction": _correction(),
    }


MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "keys": keys,
    "spec": spec,
    "samples": samples,
    "statistics": statistics,
    "requests": requests,
    "envelopes": envelopes,
    "evidence": evidence,
    "aggregation": aggregation,
    "arbitration": arbitration,
}


def text(name: str) -> str:
    """The file that should be there."""
    return json.dumps(MAKERS[name](), indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for maker in MAKERS:
        (FOLDER / f"{maker}.json").write_text(text(maker), encoding="utf-8")
