"""The golden vectors are what the code makes, and what they show can be read back."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from expunge import Spec, Statistics
from expunge.crypto import Envelope, SigningKey
from expunge.evidence import Receipt
from expunge.exact import wide
from expunge.secagg import Collector, Contribution, Opening
from expunge.wire import messages, payloads, request
from expunge.wire.token import Token
from golden import CLIENT, FOLDER, MAKERS, SERVER, SPEC, text
from support.golden_secagg import NAMES


@pytest.mark.parametrize("name", MAKERS)
def test_the_file_is_what_the_code_makes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text(name), (
        "renew with: python tests/golden.py"
    )


def vector(name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def test_there_are_no_other_files() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(MAKERS)


@pytest.mark.parametrize("name", ["rows", "gram", "none"])
def test_requests_can_be_read(name: str) -> None:
    data = bytes.fromhex(vector("requests")[name]["request"])  # type: ignore[index]
    found = request.read(data)
    found.signed.verify(CLIENT.public)
    header = found.header
    message = messages.read(SPEC, header.message, header.added, header.deleted, found.message)
    assert (message.added is None, message.deleted is None) == (
        header.added == 0,
        header.deleted == 0,
    )


def test_statistics_can_be_read() -> None:
    content = vector("statistics")
    assert (
        Statistics.from_bytes(SPEC, bytes.fromhex(str(content["statistics"]))).digest
        == content["digest"]
    )


def test_what_is_said_can_be_heard() -> None:
    content = vector("envelopes")
    for kind in ("enrolment", "question", "command"):
        payloads.open_verified(kind, str(content[kind]).encode(), CLIENT.public)
    assert Token.from_text(str(content["token"])).secret_digest == content["token_secret_digest"]


def test_the_receipt_holds() -> None:
    receipt = Receipt.read(
        Envelope.from_bytes(str(vector("evidence")["receipt"]).encode(), "receipt"), SERVER.public
    )
    assert (receipt.client, receipt.sequence, receipt.logged.index) == ("hospital-a", 1, 1)


def test_a_binding_follows_from_what_the_pages_say() -> None:
    """Written from docs/formats.md and docs/protocol.md alone, with none of our code."""
    content: dict[str, Any] = vector("evidence")["version_2"]  # type: ignore[assignment]
    lanes = [0] * 1024
    for commitment in map(bytes.fromhex, content["commitments"]):
        name = content["client"].encode()
        made = hashlib.shake_128(b"expunge\0live\0\x01" + name + b"\0" + commitment).digest(2048)
        numbers = [int.from_bytes(made[2 * lane : 2 * lane + 2], "little") for lane in range(1024)]
        lanes = [(one + other) % 65536 for one, other in zip(lanes, numbers, strict=True)]
    live = hashlib.sha256(b"".join(lane.to_bytes(2, "little") for lane in lanes)).hexdigest()
    assert live == content["multiset_hash_sha256"]
    bound = {"base": content["base"], "count": content["count"], "live": live, "version": 2}
    data = json.dumps(bound, sort_keys=True, separators=(",", ":")).encode()
    start = b"expunge\0salted\0\x01binding\0" + bytes.fromhex(content["salt"])
    found = hashlib.sha256(start + hashlib.sha256(data).digest()).hexdigest()
    assert found == content["binding"] == json.loads(content["entries"][0])["ledger_after"]


def test_times_are_read_by_a_correction_as_the_page_of_the_protocol_says() -> None:
    content: dict[str, Any] = vector("evidence")["correction"]  # type: ignore[assignment]
    entry = json.loads(content["entry"])
    for stamp, read in content["read"].items():
        earlier = datetime.fromisoformat(stamp) - timedelta(seconds=entry["ahead"])
        expected = max(earlier.strftime("%Y-%m-%dT%H:%M:%SZ"), entry["after"])
        assert read == (expected if stamp > entry["time"] else stamp)
    assert len(set(content["read"].values())) == 3


def test_the_round_of_secure_aggregation_can_be_heard_and_adds_up() -> None:
    content: dict[str, Any] = vector("aggregation")
    spec, opening = Spec.from_dict(content["spec"]), Opening.from_json(content["opening"])
    keys = {
        name: SigningKey(bytes.fromhex(seed)).public
        for name, seed in content["identity_seeds"].items()
    }
    assert spec.aggregation is not None
    collector = Collector(opening, spec.aggregation, keys.__getitem__)
    told = content["told"]
    for kind, answered in (
        ("join", None),
        ("shares", "roster"),
        ("masked", "deliveries"),
        ("agreed", "survivors"),
        ("reveal", "agreements"),
    ):
        for name, said in content["said"].items():
            if answered is not None and kind in said:
                expected = told[answered][name] if answered == "deliveries" else told[answered]
                assert (collector.say(name) or b"").hex() == expected
            if kind in said:
                assert collector.take(bytes.fromhex(said[kind])) == name
        collector.advance()
    assert (
        [list(one) for one in collector.included]
        == content["included"]
        == [["hospital-a", 1], ["hospital-b", 4]]
    )
    found = [str(one) for one in wide.to_ints(collector.sum())]
    plain = [
        str(int(one) + int(other))
        for one, other in zip(*(content["vectors"][name] for name in NAMES[:2]), strict=True)
    ]
    assert found == plain == content["sum"]
    together = Contribution.from_vector(spec, collector.sum())
    assert (together.added, together.deleted) == (4, 1)


def test_a_masked_vector_follows_from_what_the_page_of_the_protocol_says() -> None:
    """Written from docs/protocol.md alone, with none of our code: as in another language."""
    content: dict[str, Any] = vector("aggregation")
    opening, names = content["opening"], list(content["secrets"])
    roster = bytes.fromhex(content["told"]["roster"])
    length = int.from_bytes(roster[14:18], "little")
    public = {
        name: roster[18 + length + 128 * place : 18 + length + 128 * (place + 1)]
        for place, name in enumerate(names)
    }

    def key(secret: bytes, use: str, *who: str) -> bytes:
        parts = [
            use,
            opening["federation"],
            opening["round"],
            hashlib.sha256(roster).hexdigest(),
            *who,
        ]
        info = b"expunge\0aggregation\0\x02" + json.dumps(parts, separators=(",", ":")).encode()
        return HKDF(hashes.SHA256(), 32, None, info).derive(secret)

    def mask(secret: bytes, use: str, *who: str) -> list[int]:
        stream = Cipher(algorithms.AES(key(secret, use, *who)), modes.CTR(bytes(16))).encryptor()
        blocks = stream.update(bytes(16 * len(content["sum"])))
        return [int.from_bytes(blocks[at : at + 16], "little") for at in range(0, len(blocks), 16)]

    own = {what: bytes.fromhex(text) for what, text in content["secrets"]["hospital-b"].items()}
    private = X25519PrivateKey.from_private_bytes(own["mask"])
    masks = [(1, mask(own["seed"], "self mask", "hospital-b"))]
    for sign, other in (
        (-1, "hospital-a"),
        (1, "hospital-c"),
    ):  # the first of a pair by name adds, the second subtracts
        agreed = private.exchange(X25519PublicKey.from_public_bytes(public[other][32:64]))
        masks.append((sign, mask(agreed, "pair mask", *sorted(("hospital-b", other)))))
    expected = [
        (int(entry) + sum(sign * one[place] for sign, one in masks)) % 2**128
        for place, entry in enumerate(content["vectors"]["hospital-b"])
    ]
    said = bytes.fromhex(content["said"]["hospital-b"]["masked"])
    body = said[18 + int.from_bytes(said[14:18], "little") + 64 :]
    assert [
        int.from_bytes(body[at : at + 16], "little") for at in range(0, len(body), 16)
    ] == expected


def test_a_share_follows_from_what_the_page_of_the_protocol_says() -> None:
    content: dict[str, Any] = vector("aggregation")
    opening, derived = content["opening"], content["derived"]
    parts = [
        "dealing seed",
        opening["federation"],
        opening["round"],
        derived["roster_digest"],
        "hospital-a",
    ]
    info = b"expunge\0aggregation\0\x02" + json.dumps(parts, separators=(",", ":")).encode()
    secrets = {what: bytes.fromhex(text) for what, text in content["secrets"]["hospital-a"].items()}
    stream_key = HKDF(hashes.SHA256(), 32, None, info).derive(secrets["dealing"])
    threshold = content["plan"]["threshold"]
    stream = (
        Cipher(algorithms.AES(stream_key), modes.CTR(bytes(16)))
        .encryptor()
        .update(bytes(48 * (threshold - 1)))
    )
    prime = 2**256 + 297
    powers = [
        int.from_bytes(stream[at : at + 48], "little") % prime for at in range(0, len(stream), 48)
    ]
    powers.append(
        int.from_bytes(secrets["seed"], "little")
    )  # the highest power first, the secret last
    x = 1 + derived["holders_of_hospital_a"].index("hospital-b")
    value = (
        sum(coefficient * x**power for power, coefficient in enumerate(reversed(powers))) % prime
    )
    assert value.to_bytes(33, "little").hex() == derived["seed_share_of_a_for_b"]


def test_an_agreement_follows_from_what_the_page_of_the_protocol_says() -> None:
    """Its header from roster and survivors, its signature over DSSE's PAE."""
    content: dict[str, Any] = vector("aggregation")
    roster, survivors, agreements = (
        bytes.fromhex(content["told"][kind]) for kind in ("roster", "survivors", "agreements")
    )
    header = {
        "body": hashlib.sha256(b"").hexdigest(),
        "client": "hospital-b",
        "federation": content["opening"]["federation"],
        "kind": "agreed",
        "roster": hashlib.sha256(roster).hexdigest(),
        "round": content["opening"]["round"],
        "sequence": content["sequences"]["hospital-b"],
        "survivors": hashlib.sha256(survivors).hexdigest(),
    }
    payload = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    kind = b"application/vnd.expunge.aggregation.v2+json"
    covered = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex(content["identity_seeds"]["hospital-b"])
    )
    signature = key.sign(covered)
    said = bytes.fromhex(content["said"]["hospital-b"]["agreed"])
    assert said == b"expunge\0said\0\x02" + len(payload).to_bytes(4, "little") + payload + signature
    told_length = int.from_bytes(agreements[14:18], "little")
    told = json.loads(agreements[18 : 18 + told_length])
    assert told["clients"] == ["hospital-a", "hospital-b"]
    assert agreements[18 + told_length :][64:] == signature


def test_an_opening_follows_from_what_the_page_of_the_protocol_says() -> None:
    """Opened with the arbiter's key by other means than ours; it holds what the client masked."""
    content: dict[str, Any] = vector("arbitration")
    records = content["dispute"]["records"]
    roster = base64.b64decode(records["roster"])
    secret = X25519PrivateKey.from_private_bytes(bytes.fromhex(content["arbiter_secret"])[:32])
    public = secret.public_key().public_bytes_raw()
    assert content["arbiter_public"][:64] == public.hex()
    header = json.loads(roster[18 : 18 + int.from_bytes(roster[14:18], "little")])
    for name, opening in content["openings"].items():
        message = bytes.fromhex(opening)
        said = json.loads(message[18 : 18 + int.from_bytes(message[14:18], "little")])
        assert (said["kind"], said["client"]) == ("opening", name)
        body = message[18 + int.from_bytes(message[14:18], "little") + 64 :]
        parts = [
            "opening",
            header["federation"],
            header["round"],
            hashlib.sha256(roster).hexdigest(),
            name,
        ]
        info = b"expunge\0aggregation\0\x02" + json.dumps(parts, separators=(",", ":")).encode()
        shared = secret.exchange(X25519PublicKey.from_public_bytes(body[:32]))
        key = HKDF(hashes.SHA256(), 32, None, info).derive(shared)
        opened = ChaCha20Poly1305(key).decrypt(bytes(12), body[32:], body[:32])
        assert opened.hex() == content["opened"][name]
        keys = int.from_bytes(opened[96:104], "little")
        assert keys == 32 * (len(NAMES) - 1)  # one for each neighbour
        length = int.from_bytes(opened[104 + keys : 112 + keys], "little")
        assert opened[112 + keys : 131 + keys] == b"expunge\0statistics\0"
        assert len(opened) >= 120 + keys + length
        # The mask key is that of its join; the self seed is the one that it dealt shares of.
        mask, seed = (opened[at : at + 32] for at in (0, 32))
        place = 18 + int.from_bytes(roster[14:18], "little") + 128 * NAMES.index(name)
        public = X25519PrivateKey.from_private_bytes(mask).public_key().public_bytes_raw()
        assert roster[place + 32 : place + 64] == public
        dealt = json.loads(base64.b64decode(records["shares"][name][0]))
        assert (dealt["kind"], dealt["client"]) == ("shares", name)
        info = info.replace(b'"opening"', b'"seed"')
        assert dealt["seed"] == hashlib.sha256(info + seed).hexdigest()


def test_the_verdict_and_the_rows_follow_from_what_the_page_says() -> None:
    content: dict[str, Any] = vector("arbitration")
    envelope = json.loads(content["verdict"])
    payload = base64.b64decode(envelope["payload"])
    kind = b"application/vnd.expunge.verdict.v1+json"
    covered = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(content["arbiter_public"])[32:])
    key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), covered)
    assert list(json.loads(payload)["false"]) == ["hospital-b"]
    rows = content["rows"]
    by_digest = sorted(
        rows["clients"],
        key=lambda name: hashlib.sha256(f"{rows['aggregation']} {name}".encode()).digest(),
    )
    signers = [name for name in by_digest if name in rows["signers"]]
    ordered = [*signers, *(name for name in by_digest if name not in rows["signers"])]
    count = len(signers) // (rows["fewest"] + -(-rows["colluding"] * rows["size"] // 100))
    assert count == 2
    assert rows["rows"] == [sorted(ordered[index::count]) for index in range(count)]
