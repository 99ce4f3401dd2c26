"""Results: the server's signed answer to a command of an operator or an officer, with its place in
the audit log.

A question changes nothing and leaves no entry: its sequence is 0, and `entry`, `log` and
`checkpoint` are null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expunge.crypto import Envelope, PublicKey
from expunge.errors import EvidenceError
from expunge.evidence.log import Checkpoint, Logged, check_position
from expunge.evidence.rotation import KeyChain
from expunge.wire import schema

_CHECK = schema.objects(
    {
        "version": schema.version,
        "federation": schema.federation,
        "server": schema.digest,
        "actor": schema.name,
        "sequence": schema.count,
        "action": schema.identifier,
        "result": lambda value, _: value,  # as the action has it
        "time": schema.time,
        "entry": lambda value, _: value,  # read as Logged
        "log": schema.or_null(check_position),
        "checkpoint": schema.or_null(lambda value, _: Checkpoint.from_json(value)),
    }
)


def result_content(
    *,
    federation: str,
    server: str,
    actor: str,
    sequence: int,
    action: str,
    result: Any,
    time: str,
    logged: Logged | None = None,
    checkpoint: Checkpoint | None = None,
) -> dict[str, Any]:
    """What the server signs as an envelope of kind "result"; with the `commanded` entry and a
    checkpoint, or neither.
    """
    return {
        "version": 1,
        "federation": federation,
        "server": server,
        "actor": actor,
        "sequence": sequence,
        "action": action,
        "result": result,
        "time": time,
        "entry": None if logged is None else logged.entry,
        "log": None if logged is None else logged.position(),
        "checkpoint": None if checkpoint is None else checkpoint.to_json(),
    }


@dataclass(frozen=True)
class Result:
    """A verified result: the server's signed answer to a command or question of an office.

    `Office.do` and `Office.ask` verify results themselves and return their values.

    Attributes
    ----------
    federation : str
        The federation's id.
    server : str
        The id of the key that signed it.
    actor : str
        The name of the operator or officer who asked.
    sequence : int
        The number of the command; 0 for a question.
    action : str
        What was asked for, such as `"order"` or `"status"`.
    result : object
        `{"nonce": ..., "value": ...}`; the nonce of a question, empty for a command.
    time : str
        When it was answered, in UTC.
    logged : Logged or None
        The `commanded` entry in the audit log; None for a question.
    checkpoint : Checkpoint or None
        The state of the log that the inclusion proof is for; None for a question.

    Examples
    --------
    >>> from expunge.crypto import Envelope, SigningKey
    >>> from expunge.evidence import Result
    >>> server = SigningKey(bytes(32))
    >>> content = {
    ...     "version": 1,
    ...     "federation": "0" * 32,
    ...     "server": server.public.id,
    ...     "actor": "operator",
    ...     "sequence": 0,
    ...     "action": "status",
    ...     "result": {"nonce": "1" * 64, "value": {"samples": 12}},
    ...     "time": "2026-11-15T09:30:00Z",
    ...     "entry": None,
    ...     "log": None,
    ...     "checkpoint": None,
    ... }
    >>> envelope = Envelope.signed("result", content, server)  # the server does this
    >>> Result.read(envelope, server.public).result["value"]
    {'samples': 12}
    """

    federation: str
    server: str
    actor: str
    sequence: int
    action: str
    result: Any
    time: str
    logged: Logged | None
    checkpoint: Checkpoint | None

    @classmethod
    def read(cls, envelope: Envelope, keys: KeyChain | PublicKey) -> Result:
        """The result, if the server signed it, a command's entry is in the log, and its parts
        agree.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `result`.
        keys : KeyChain or PublicKey
            The server's key, or the keys that rotations link to it.

        Returns
        -------
        Result
            The verified result.

        Raises
        ------
        EvidenceError
            The signature or the inclusion proof does not hold, or parts contradict one another.
        FormatError
            The content is not a result.
        """
        chain = keys if isinstance(keys, KeyChain) else KeyChain(keys)
        parts = chain.verify(envelope, lambda content: _claims(_CHECK(content, "a result")))
        given = [parts[name] is not None for name in ("entry", "log", "checkpoint")]
        if any(given) != all(given) or any(given) != (parts["sequence"] > 0):
            raise EvidenceError(
                "the result of a command must have its log entry, position and checkpoint; that "
                "of a question, none"
            )
        result = cls(
            parts["federation"],
            parts["server"],
            parts["actor"],
            parts["sequence"],
            parts["action"],
            parts["result"],
            parts["time"],
            Logged.at(parts["entry"], parts["log"]) if any(given) else None,
            Checkpoint.from_json(parts["checkpoint"]) if any(given) else None,
        )
        result._verify(envelope.signatures[0][0])
        return result

    def _verify(self, signer: str) -> None:
        if self.server != signer:
            raise EvidenceError("the result names another server key than the one that signed it")
        if self.logged is None or self.checkpoint is None:
            return
        if self.checkpoint.federation != self.federation:
            raise EvidenceError("the result and its checkpoint are of different federations")
        entry = self.logged.entry
        if entry["kind"] != "commanded":
            raise EvidenceError(
                f"a result is for an entry of kind 'commanded', not {entry['kind']!r}"
            )
        if (entry["actor"], entry["sequence"], entry["action"]) != (
            self.actor,
            self.sequence,
            self.action,
        ):
            raise EvidenceError(
                f"the result is for {self.action} (command {self.sequence} of {self.actor}), but "
                "its log entry is for "
                f"{entry['action']} (command {entry['sequence']} of {entry['actor']})"
            )
        self.logged.verify(self.checkpoint)


def _claims(parts: dict[str, Any]) -> tuple[str, str]:
    return parts["federation"], parts["time"]
