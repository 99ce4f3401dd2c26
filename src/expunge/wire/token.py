"""Enrolment tokens: one line of text that an operator passes to a new client, officer or operator.

A token says where the server is and which key it signs with, so that nothing has to be trusted on
first use, and carries a secret that enrols once. The server keeps the secret's SHA-256 only.

`Token.redeem` is the one way to enrol: for clients, officers and operators, and for the clients of
a server that was rebuilt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.errors import EvidenceError, FormatError, RefusedError
from expunge.kinds import Role
from expunge.wire import payloads, schema
from expunge.wire.carrier import Carrier
from expunge.wire.refusals import NOT_ENROLLED

_PREFIX = "expunge-token-1."
_CHECK = schema.objects(
    {
        "ca": schema.string,
        "federation": schema.federation,
        "name": schema.name,
        "role": schema.role,
        "secret": schema.nonce,
        "server": schema.key_text,
        "urls": schema.lists(schema.string),
    }
)


@dataclass(frozen=True)
class Token:
    """Who may enrol, at which server.

    `ca` is the PEM of a private certificate authority, or empty.
    """

    federation: str
    name: str
    role: Role
    secret: str
    server: PublicKey
    urls: tuple[str, ...]
    ca: str = ""

    @property
    def secret_digest(self) -> str:
        """What the server keeps of the secret."""
        return secret_digest(self.secret)

    def redeem(
        self,
        key: SigningKey,
        carrier: Carrier,
        *,
        spec: str,
        signer: Callable[[Envelope], PublicKey],
        undo: Callable[[], None] | None,
    ) -> dict[str, Any]:
        """Enrol a key; after a lost answer, the same call again finishes it.

        Parameters
        ----------
        key : SigningKey
            The key to enrol, durable already: the server may take it in though no answer comes.
        carrier : Carrier
            The way to the server.
        spec : str
            The data digest of a client's spec; empty for an office.
        signer : callable
            The server's key that must have signed this answer.
        undo : callable, optional
            Called if this attempt was refused for good; None where an earlier one may have
            arrived.

        Returns
        -------
        dict
            The server's answer, signed and about this key.

        Raises
        ------
        RefusedError
            The server does not take the key in.
        EvidenceError
            The answer is another server's, or about somebody else.
        """
        content = {
            "federation": self.federation,
            "key": key.public.text,
            "name": self.name,
            "spec": spec,
            "token": self.secret,
        }
        try:
            data = carrier.enrol(payloads.sign("enrolment", content, key))
        except RefusedError as refusal:
            if undo is not None and refusal.code in NOT_ENROLLED:
                undo()
            raise
        envelope, answer = payloads.open_unverified("enrolled", data)
        server = signer(envelope)
        envelope.verify(server)
        due = {
            "federation": self.federation,
            "name": self.name,
            "role": self.role,
            "key": key.public.text,
            "server": server.text,
        }
        if any(answer[name] != value for name, value in due.items()):
            raise EvidenceError(
                f"the server enrolled {answer['name']!r:.80} as {answer['role']!r:.40}, not what "
                "the token says"
            )
        return answer

    def to_text(self) -> str:
        """The line of text."""
        content = {
            "ca": self.ca,
            "federation": self.federation,
            "name": self.name,
            "role": self.role,
            "secret": self.secret,
            "server": self.server.text,
            "urls": list(self.urls),
        }
        return _PREFIX + base64.urlsafe_b64encode(canonical.encode(content)).decode("ascii").rstrip(
            "="
        )

    @classmethod
    def from_text(cls, text: str) -> Token:
        """The inverse of `to_text`; white space around it does no harm."""
        stripped = text.strip()
        if not stripped.startswith(_PREFIX):
            raise FormatError(
                f"an enrolment token begins with {_PREFIX!r}; ask the operator for one: expunge "
                "server token"
            )
        try:
            return cls._from_encoded(stripped[len(_PREFIX) :])
        except (FormatError, UnicodeError) as problem:
            raise FormatError(
                f"the enrolment token is damaged: copy it again, whole ({problem})"
            ) from problem

    @classmethod
    def _from_encoded(cls, encoded: str) -> Token:
        try:
            data = base64.b64decode(
                encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True
            )
        except (binascii.Error, ValueError) as problem:
            raise FormatError(str(problem)) from problem
        content = _CHECK(canonical.decode(data, "the enrolment token"), "the enrolment token")
        server, urls = PublicKey.from_text(content["server"]), tuple(content["urls"])
        return cls(**content | {"server": server, "urls": urls})


def secret_digest(secret: str) -> str:
    """SHA-256 of a token's secret."""
    return hashlib.sha256(b"expunge\x00token\x00\x01" + bytes.fromhex(secret)).hexdigest()
