"""Certificates: the server's signed statement about the current head.

Law: `Certificate.read(Envelope.signed("certificate", certificate_content(...), key), key.public)`
has the parts it was made of; a certificate that contradicts itself is refused, no matter who signed
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expunge import kinds
from expunge.crypto import Envelope, PublicKey
from expunge.errors import EvidenceError, FormatError, SpecError
from expunge.evidence import digests
from expunge.evidence.log import Checkpoint
from expunge.evidence.rotation import KeyChain
from expunge.evidence.wording import CRYPTOGRAPHY, MASKED_CLIENTS, SOFTWARE, moment, number, samples
from expunge.ridge.spec import Spec
from expunge.wire import schema

if TYPE_CHECKING:
    from expunge.ridge.head import Head

STATEMENT = (
    "For any noise variance the weights have one matrix-normal posterior given the ledger: its "
    "mean is the exact solution that the head is the rounding of, its precision is S + gamma I. "
    "Retraining from the retained samples gives the same integers, so the same posterior, and the "
    "Kullback-Leibler divergence between the two is 0."
)
FLOAT_STATEMENT = (
    "The ledger is kept in float64, so the posterior agrees with that of retraining up to rounding "
    "errors only; nothing is claimed about their divergence."
)
ASSUMPTIONS = (
    (
        "Clients subtract what they added. The server checks it against the commitments made when "
        "samples were added, and an audit recomputes every client's statistics from its own store; "
        "arithmetic alone could not tell."
    ),
    CRYPTOGRAPHY,
    SOFTWARE,
    (
        "The backbone that made the features is outside of all this: it is frozen, and the head is "
        "all that learns."
    ),
)


def assumptions_under(spec: Spec) -> tuple[str, ...]:
    """What a certificate rests on in a federation with this spec."""
    return (MASKED_CLIENTS, *ASSUMPTIONS[1:]) if spec.is_masked else ASSUMPTIONS


def _spec(value: Any, what: str) -> Any:
    try:
        same = Spec.from_dict(value).to_dict() == value
    except SpecError as problem:
        raise FormatError(f"{what} is no spec: {problem}") from problem
    if not same:
        raise FormatError(f"{what} is not in the form in which specs are written")
    return value


_CHECK_AUDIT = schema.objects(
    {
        "audit": schema.identifier,
        "time": schema.time,
        "result": schema.one_of(*kinds.AUDIT_RESULTS),
        "index": schema.count,
    }
)
_CHECK_SPEC = schema.objects(
    {
        "data": schema.digest,
        "labels": schema.digest,
        "head": schema.digest,
        "policy": schema.digest,
        "content": _spec,
    }
)
_CHECK = schema.objects(
    {
        "version": schema.versions(1, 2),
        "federation": schema.federation,
        "server": schema.digest,
        "time": schema.time,
        "spec": _CHECK_SPEC,
        "head": schema.digest,
        "bound": schema.text,
        "publication_bits": lambda value, _: value,  # compared with the spec's
        "solver": schema.text,
        "count": schema.count,
        "clients": schema.count,
        "ledger": schema.digest,
        "posterior": schema.objects(
            {
                "mean": schema.digest,
                "precision": schema.digest,
                "kl_to_retraining": schema.one_of("0", ""),
                "statement": schema.text,
            }
        ),
        "checkpoint": lambda value, _: Checkpoint.from_json(value),
        "audit": schema.or_null(_CHECK_AUDIT),
        "exact": schema.boolean,
        "deviation": schema.text,
        "assumptions": schema.lists(schema.text),
    },
    optional={"binds": schema.one_of(*kinds.BOUND)},  # in version 2, always
)


def certificate_content(
    *,
    server: str,
    time: str,
    spec: Spec,
    head: str,
    bound: float | None,
    solver: str,
    count: int,
    clients: int,
    ledger: str,
    binds: kinds.Bound,
    checkpoint: Checkpoint,
    audit: Mapping[str, Any] | None = None,
    deviation: str = "",
) -> dict[str, Any]:
    """What the server signs as an envelope of kind "certificate".

    `head` is the plain digest of the current head, `ledger` the salted digest of the ledger, and
    `binds` what that is of. An exact head has its `error_bound` as `bound`; in float64 arithmetic
    `bound` is None and `deviation` says in words how far from exact it is.
    """
    exact = bound is not None
    return {
        "version": 2,
        "federation": checkpoint.federation,
        "server": server,
        "time": time,
        "spec": {**digests.spec_digests(spec), "content": spec.to_dict()},
        "head": head,
        "bound": "" if bound is None else float(bound).hex(),
        "publication_bits": spec.publication_bits,
        "solver": solver,
        "count": count,
        "clients": clients,
        "ledger": ledger,
        "binds": binds,
        "posterior": {
            "mean": head,
            "precision": ledger,
            "kl_to_retraining": "0" if exact else "",
            "statement": STATEMENT if exact else FLOAT_STATEMENT,
        },
        "checkpoint": checkpoint.to_json(),
        "audit": None if audit is None else dict(audit),
        "exact": exact,
        "deviation": deviation,
        "assumptions": list(assumptions_under(spec)),
    }


@dataclass(frozen=True)
class Certificate:
    """A certificate whose signature has been verified and whose parts agree: the server's signed
    statement about one head.

    Attributes
    ----------
    federation : str
        The federation's id.
    server : str
        The id of the key that signed it.
    time : str
        When it was made, in UTC.
    spec : Spec
        The whole spec that the head was solved under.
    head : str
        The digest of the head (`Head.digest`).
    bound : float or None
        The proven error bound of the solution before rounding (`Head.error_bound`); None in float64
        federations.
    solver : str
        `"woodbury"` or `"cholesky"`.
    count : int
        How many samples the ledger retains.
    clients : int
        How many clients are active.
    ledger : str
        The salted digest of the ledger.
    binds : {"sums", "samples"}
        What that digest is of: all of the ledger's sums; or which samples are live, and the sums at
        an earlier place of the log.
    checkpoint : Checkpoint
        The state of the audit log.
    audit : dict or None
        The last finished audit: `audit` (its id), `time`, `result` (`"equal"` or `"different"`) and
        `index` (of its log entry).
    deviation : str
        Empty if the head is exact; otherwise how far from exact it is, in words.

    Notes
    -----
    The server signs that the head is the one of its ledger; no certificate proves it against an
    operator who runs other software. An audit compares the ledger with what the clients say that
    they hold.

    Examples
    --------
    >>> import tempfile
    >>> from expunge import Spec, Statistics, solve
    >>> from expunge.federation import Federation
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> features, labels = [[1.0, 0.5], [0.0, 1.0]], ["cat", "dog"]
    >>> receipts = federation.client("north").add(["a", "b"], features, labels)
    >>> head, certificate = federation.published()
    >>> certificate.exact, certificate.count, certificate.clients
    (True, 2, 1)
    >>> certificate.verify_head(solve(Statistics.of(spec, features, labels)))
    >>> certificate.verify_head(solve(Statistics.of(spec, features[:1], labels[:1])))
    Traceback (most recent call last):
    ...
    expunge.errors.EvidenceError: the certificate is of the head with digest ...
    >>> federation.close()
    >>> folder.cleanup()
    """

    federation: str
    server: str
    time: str
    spec: Spec
    head: str
    bound: float | None  # None where the arithmetic is float64
    solver: str
    count: int
    clients: int
    ledger: str
    binds: kinds.Bound
    checkpoint: Checkpoint
    audit: dict[str, Any] | None
    deviation: str

    @property
    def exact(self) -> bool:
        """Whether the certificate says that the head is, bit for bit, that of retraining."""
        return self.bound is not None

    @classmethod
    def read(cls, envelope: Envelope, keys: KeyChain | PublicKey) -> Certificate:
        """The certificate, if the server signed it and its parts agree.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `certificate`.
        keys : KeyChain or PublicKey
            The server's key, or the keys that rotations link to it.

        Returns
        -------
        Certificate
            The verified certificate.

        Raises
        ------
        EvidenceError
            The signature does not hold, or parts contradict one another.
        FormatError
            The content is not a certificate.
        """
        chain = keys if isinstance(keys, KeyChain) else KeyChain(keys)
        parts = chain.verify(envelope, lambda content: _claims(_CHECK(content, "a certificate")))
        if parts["server"] != envelope.signatures[0][0]:
            raise EvidenceError(
                "the certificate names another server key than the one that signed it"
            )
        return cls._of(parts)

    @classmethod
    def unverified(cls, envelope: Envelope) -> Certificate:
        """The certificate without checking its signature: to display it, not to rely on it.

        Parameters
        ----------
        envelope : Envelope
            The envelope of kind `certificate`.

        Returns
        -------
        Certificate
            The certificate, whose parts agree.

        Raises
        ------
        EvidenceError
            Parts contradict one another.
        FormatError
            The content is not a certificate.
        """
        return cls._of(_CHECK(envelope.unverified(), "a certificate"))

    @classmethod
    def _of(cls, parts: dict[str, Any]) -> Certificate:
        spec, checkpoint = (
            Spec.from_dict(parts["spec"]["content"]),
            Checkpoint.from_json(parts["checkpoint"]),
        )
        certificate = cls(
            parts["federation"],
            parts["server"],
            parts["time"],
            spec,
            parts["head"],
            _bound(parts),
            parts["solver"],
            parts["count"],
            parts["clients"],
            parts["ledger"],
            parts.get("binds", "sums"),
            checkpoint,
            parts["audit"],
            parts["deviation"],
        )
        if ("binds" in parts) != (parts["version"] == 2):
            raise FormatError("a certificate says what its ledger's digest is of in version 2")
        if {
            name: value for name, value in parts["spec"].items() if name != "content"
        } != digests.spec_digests(spec):
            raise EvidenceError(
                "the certificate's spec digests are not those of the spec that it holds"
            )
        if parts["publication_bits"] != spec.publication_bits or isinstance(
            parts["publication_bits"], bool
        ):
            raise EvidenceError("the certificate's publication bits are not those of its spec")
        if (parts["posterior"]["mean"], parts["posterior"]["precision"]) != (
            parts["head"],
            parts["ledger"],
        ):
            raise EvidenceError("the certificate's posterior is not that of its head and ledger")
        if checkpoint.federation != certificate.federation:
            raise EvidenceError("the certificate and its checkpoint are of different federations")
        if certificate.audit is not None and certificate.audit["index"] >= checkpoint.size:
            raise EvidenceError("the certificate names an audit that lies beyond its checkpoint")
        return certificate

    def verify_head(self, head: Head) -> None:
        """Return if the certificate is of this head, weight for weight; raise otherwise.

        Parameters
        ----------
        head : Head
            The head to compare, by its digest.

        Raises
        ------
        EvidenceError
            The certificate is of another head.
        """
        if head.digest != self.head:
            raise EvidenceError(
                f"the certificate is of the head with digest {self.head}, but this head has digest "
                f"{head.digest}: fetch the head and the certificate that belong together"
            )


def _bound(parts: dict[str, Any]) -> float | None:
    """The bound, once it is seen to agree with what the certificate says of exactness."""
    exact, text = parts["exact"], parts["bound"]
    agree = (
        parts["posterior"]["kl_to_retraining"] == ("0" if exact else "")
        and bool(parts["deviation"]) != exact
    )
    if not agree or bool(text) != exact:
        raise EvidenceError(
            "the certificate contradicts itself: an exact head has a bound, divergence 0 and no "
            "deviation; one in float64 has only a deviation, in words"
        )
    if not exact:
        return None
    try:
        bound = float.fromhex(text)
    except (ValueError, OverflowError) as problem:
        raise FormatError(
            f"the bound of a certificate must be a hexadecimal float, got {text!r:.80}"
        ) from problem
    if bound.hex() != text or not math.isfinite(bound) or bound < 0.0:
        raise FormatError(
            "the bound of a certificate must be a finite hexadecimal float, not negative, got "
            f"{text!r:.80}"
        )
    return bound


def _claims(parts: dict[str, Any]) -> tuple[str, str]:
    return parts["federation"], parts["time"]


def certified(certificate: Certificate) -> str:
    """What a certificate says of its head."""
    held = f"the {samples(certificate.count)}" if certificate.count else "no samples"
    retained = f"{held} retained by {number(certificate.clients, 'client')}"
    name = f"The current head (digest {certificate.head[:16]}\u2026)"
    if certificate.exact:
        return (
            f"{name} is certified to be, bit for bit, the head that retraining from {retained} "
            "gives; its posterior is that of retraining, with Kullback-Leibler divergence 0."
        )
    return f"{name} is made in float64 arithmetic from {retained}. It is not claimed to be exact."


def unaudited(certificate: Certificate) -> list[str]:
    """What a certificate leaves open for want of an audit that found both sums equal."""
    what = "That the ledger equals what the clients hold"
    if certificate.audit is None:
        return [f"{what}: there has been no audit yet."]
    if certificate.audit["result"] != "equal":
        return [f"{what}: THE LAST AUDIT FOUND A DIFFERENCE."]
    return [
        (
            f"{what} now: the last audit, of {moment(certificate.audit['time'])}, is about what "
            "each held when it answered."
        )
    ]
