"""Enrolment tokens: one line of text that an operator passes to a new client, officer or operator.

A token says where the server is and which key it signs with, so that nothing has to be trusted on
first use, and carries a secret that enrols once. The server stores only the secret's SHA-256.

`Token.redeem` is the only way to enrol: for clients, officers and operators, and for the clients of
a server that was rebuilt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from expunge._lazy import public_dir
from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.errors import EvidenceError, FormatError, RefusedError
from expunge.kinds import Role
from expunge.wire import payloads, schema
from expunge.wire.carrier import Carrier
from expunge.wire.refusals import NOT_ENROLLED

__all__ = ["Token"]
__dir__ = public_dir(__name__)

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
    r"""A one-time right to enrol under one name, at one server.

    An operator makes tokens (`Office.token`, `Federation.token`, `expunge server token`);
    `expunge.client.enrol` and `Office.enrol` redeem them. Pass a token on confidentially: until it
    is used or expires, its holder can enrol in its name.

    Attributes
    ----------
    federation : str
        The federation's id, 32 hexadecimal digits.
    name : str
        The name to enrol under: 1 to 64 of `a-z 0-9 - _ .`, beginning with a letter or digit.
    role : {"client", "officer", "operator"}
        What the holder may do.
    secret : str
        64 hexadecimal digits; the server stores only their digest.
    server : PublicKey
        The key that the server signs with.
    urls : tuple of str
        Where the server is: https URLs, or the folder of a server on this machine.
    ca : str, default ""
        The PEM of a private certificate authority; empty if the system's are to be trusted.

    Examples
    --------
    >>> from expunge.crypto import SigningKey
    >>> from expunge.wire.token import Token
    >>> token = Token(
    ...     federation="0123456789abcdef" * 2,
    ...     name="hospital-a",
    ...     role="client",
    ...     secret="0123456789abcdef" * 4,
    ...     server=SigningKey(bytes(32)).public,
    ...     urls=("https://expunge.example.org:8443",),
    ... )
    >>> text = token.to_text()
    >>> text[:16]
    'expunge-token-1.'
    >>> Token.from_text(text + "\n") == token
    True
    >>> Token.from_text(text[:-8])
    Traceback (most recent call last):
    ...
    expunge.errors.FormatError: the enrolment token is damaged: copy it again, whole (...)
    """

    federation: str
    name: str
    role: Role
    secret: str = field(repr=False)
    server: PublicKey
    urls: tuple[str, ...]
    ca: str = ""

    @property
    def secret_digest(self) -> str:
        """The digest of the secret, which is all that the server stores of it."""
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
        """Enrol a key; after a lost answer, the same call again finishes the enrolment.

        `expunge.client.enrol` and `Office.enrol` call this, with a folder to keep the key in.

        Parameters
        ----------
        key : SigningKey
            The key to enrol. It must be stored durably before: the server may take it in though no
            answer comes.
        carrier : Carrier
            The way to the server.
        spec : str
            The data digest of a client's spec; empty for an office.
        signer : callable
            Takes the envelope of the answer, and returns the server's key that must have signed it.
        undo : callable or None
            Called without arguments if this attempt was refused for good; None if an earlier
            attempt may have arrived.

        Returns
        -------
        dict
            The server's answer, signed and about this key: `federation`, `name`, `role`, `key`,
            `server`, `spec`, `sequence` and `log`.

        Raises
        ------
        RefusedError
            The server does not take the key in.
        CarrierError
            No answer came: call again with the same key.
        EvidenceError
            The answer is another server's, or about another name, role or key.
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
        """The token as one line of text; `from_text` is the inverse.

        Returns
        -------
        str
            `expunge-token-1.` and base64url.
        """
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
        """The token in a line of text; white space around it is ignored.

        Parameters
        ----------
        text : str
            What `to_text` returned.

        Returns
        -------
        Token
            The token.

        Raises
        ------
        FormatError
            The text is not a token, or is incomplete.
        """
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
