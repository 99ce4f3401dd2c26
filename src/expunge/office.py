"""Office: an operator or privacy officer with its key, the server it trusts, and its pending
command.

Laws:
- a command is durable before it is offered, and until its result is here the very same bytes are
  offered again: whatever is lost or killed in between, it takes effect once. A refusal ends it only
  if no earlier attempt can have taken effect; until then its number is given to no repetition of
  it, and to another command only because one of the two must then be refused;
- an answer of the server is accepted only if the pinned key, or one that rotations link to it,
  signed it, for this question and no other; the result of a command must also be in the audit log.

Its folder (`OfficeFolder`):

office.key       the Ed25519 key that signs commands (PEM). Truth; may not be lost: a new key needs
                 a new enrolment
office.json      name and role, the server's pinned key, where the server is, the number of the
                 last command answered
command          the pending command; absent if there is none
orders           the ids of the orders that this office has filed and not closed, without their
                 subjects
lock             held by the process that has the office open
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from expunge._lazy import public_dir
from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.errors import EvidenceError, ExpungeError, ProtocolError, RefusedError, StoreError
from expunge.evidence import KeyChain, Result
from expunge.evidence.rotation import read_federation
from expunge.kinds import Role
from expunge.storage.files import (
    FolderLock,
    erase,
    erase_drafts,
    make_folder,
    rename,
    sync_folder,
    write_whole,
)
from expunge.storage.machine import machine_of
from expunge.wire import payloads, refusals, schema
from expunge.wire.carrier import Carrier, CheckedCarrier
from expunge.wire.token import Token

__all__ = ["Office"]
__dir__ = public_dir(__name__)

_KEY, _STATE, _COMMAND, _ORDERS = "office.key", "office.json", "command", "orders"
_VERSION = 1
_FIELDS = frozenset(
    {
        "version",
        "name",
        "role",
        "federation",
        "server",
        "rotations",
        "address",
        "ca",
        "sequence",
        "enrolled",
    }
)


@dataclass(frozen=True)
class OfficeState:
    """What an office knows. `sequence` is the number of the last command whose result is here."""

    name: str
    role: Role
    federation: str
    server: PublicKey
    address: str
    ca: str = ""
    rotations: Sequence[Envelope] = field(default=())
    sequence: int = 0
    enrolled: bool = True

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return canonical.encode(
            {
                "version": _VERSION,
                "name": self.name,
                "role": self.role,
                "federation": self.federation,
                "server": self.server.text,
                "rotations": [envelope.to_json() for envelope in self.rotations],
                "address": self.address,
                "ca": self.ca,
                "sequence": self.sequence,
                "enrolled": self.enrolled,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> OfficeState:
        """The inverse of `to_bytes`."""
        parts: dict[str, Any] = canonical.decode_object(data, what, _FIELDS)
        if parts["version"] != _VERSION:
            raise StoreError(
                f"{what} is of version {parts['version']!r:.20}; this program reads version "
                f"{_VERSION}: update expunge"
            )
        return cls(
            schema.name(parts["name"], "the name"),
            schema.role(parts["role"], "the role"),
            schema.federation(parts["federation"], "the federation"),
            PublicKey.from_text(parts["server"]),
            str(parts["address"]),
            str(parts["ca"]),
            tuple(Envelope.from_json(value, "rotation") for value in parts["rotations"]),
            schema.count(parts["sequence"], "the sequence number"),
            schema.boolean(parts["enrolled"], "enrolled"),
        )


class OfficeFolder:
    """The files of an office; holding the lock gives exclusive access to them."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self.path = path
        self.machine = machine_of(path)
        self._lock = lock
        self.key = SigningKey.from_pem((path / _KEY).read_bytes())
        self.state = OfficeState.from_bytes((path / _STATE).read_bytes(), str(path / _STATE))

    @classmethod
    def create(cls, path: Path, state: OfficeState, key: SigningKey) -> OfficeFolder:
        """A new folder, which appears whole or not at all; one that holds anything already is
        refused.
        """
        path = path.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreError(f"{path} is not empty: choose another folder for the office")
        draft = path.with_name(path.name + ".new")
        make_folder(draft)  # one that was left by an interrupted creation is written over
        write_whole(draft / _KEY, key.pem)
        write_whole(draft / _STATE, state.to_bytes())
        rename(draft, path)
        sync_folder(path.parent)
        return cls.open(path)

    @classmethod
    def exists(cls, path: Path) -> bool:
        """Whether there is an office in a folder."""
        return (path / _STATE).exists()

    @classmethod
    def open(cls, path: Path, timeout: float = 0.0) -> OfficeFolder:
        """The folder of an office that was created before."""
        path = path.absolute()
        for name in (_KEY, _STATE):
            if not (path / name).exists():
                raise StoreError(
                    f"{path / name} is missing: this is no office of an operator or officer, or a "
                    "damaged one"
                )
        lock = FolderLock(path, timeout)
        try:
            erase_drafts(path)
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    def write(self, state: OfficeState) -> None:
        """Replace what the office knows, durably."""
        self._replace(_STATE, state.to_bytes())
        self.state = state

    def command(self) -> bytes | None:
        """The command that is under way, if there is one."""
        file = self.path / _COMMAND
        return file.read_bytes() if file.exists() else None

    def write_command(self, data: bytes) -> None:
        """Make a command durable, before it is offered for the first time."""
        self._replace(_COMMAND, data)

    def drop_command(self) -> None:
        """The command has come to its end; it may have named a subject."""
        erase(self.path / _COMMAND)

    def orders(self) -> list[str]:
        """The ids of the orders that were filed from here and not closed, the oldest first."""
        file = self.path / _ORDERS
        if not file.exists():
            return []
        orders = canonical.decode(file.read_bytes(), str(file))
        if not isinstance(orders, list):
            raise StoreError(
                f"{file} must be a list of orders: remove it, and the office forgets what it has "
                "filed"
            )
        return [schema.drawn_id(order, "an order") for order in orders]

    def write_orders(self, orders: Sequence[str]) -> None:
        """Replace the ids of the orders that were filed from here."""
        self._replace(_ORDERS, canonical.encode(list(orders)))

    def _replace(self, name: str, data: bytes) -> None:
        try:
            write_whole(self.path / name, data)
        except OSError as problem:
            raise StoreError(
                f"{self.path / name} cannot be written: {problem.strerror}. Mend that, or move the "
                "office's folder to another disk, and give the same command again"
            ) from problem

    def remove(self) -> None:
        """Remove the whole folder: of an office that was never enrolled."""
        for name in (_COMMAND, _ORDERS, _STATE, _KEY, "lock"):
            erase(self.path / name)
        self._lock.release()
        self.path.rmdir()

    def close(self) -> None:
        """Let others in."""
        self._lock.release()


_KEY_BYTES = 32
_TOKEN_BYTES = 32
_NONCE_BYTES = 32


class Office:
    """An operator or privacy officer: a key, the server that it trusts, and a way to reach it.

    Use `enrol` once, then `open`; in a `with` statement or with `close`. A crash loses nothing: a
    pending command is offered again until its result is here, and takes effect once.

    Parameters
    ----------
    folder : OfficeFolder
        The opened folder of the office.
    carrier : Carrier or None
        The way to the server; None for an office that is not to speak to it yet.

    Attributes
    ----------
    notices : list of str
        What became of earlier commands whose answers were lost, in sentences for people.

    Notes
    -----
    Answers are accepted only if the pinned server key, or a key that rotations link to it, signed
    them, and the result of a command is in the log that the server shows. An office does not follow
    the log: unlike a client, it does not notice if the server later shows another one.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> from expunge.office import Office
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
    >>> federation = Federation.found(f"{folder.name}/federation", spec)
    >>> client = federation.client("north")

    A privacy officer enrols by a token of the operator, and files an order:

    >>> token = federation.token("officer-a", "officer")
    >>> office = Office.enrol(Path(folder.name) / "officer", token, federation.carrier)
    >>> order = office.do("order", {"subject": "patient 12", "days": 14, "reference": "case 7"})
    >>> order["state"], office.filed == [order["order"]]
    ('open', True)
    >>> office.ask("show-order", {"order": order["order"]})["reference"]
    'case 7'
    >>> office.close()
    >>> federation.close()
    >>> folder.cleanup()
    """

    def __init__(self, folder: OfficeFolder, carrier: Carrier | None) -> None:
        self._folder = folder
        self._carrier = carrier
        self.notices: list[str] = []  # what became of commands that were under way, for people

    # -- enrolment ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        name: str,
        role: Role,
        federation: str,
        server: PublicKey,
        address: str,
        ca: str = "",
        key: SigningKey | None = None,
        carrier: Carrier | None = None,
    ) -> Office:
        """Create the office of an actor whom the server knows already: the first operator.

        Parameters
        ----------
        path : Path
            A folder that is empty or does not exist.
        name : str
            The name under which the server knows the actor.
        role : {"officer", "operator"}
            The actor's role.
        federation : str
            The federation's id.
        server : PublicKey
            The server's key, which is pinned.
        address : str
            Where the server is: a URL, or a folder on this machine.
        ca : str, default ""
            The PEM of a private certificate authority; empty to trust the system's.
        key : SigningKey or None, default None
            The key that signs commands; None for a new one.
        carrier : Carrier or None, default None
            The way to the server.

        Returns
        -------
        Office
            The office, open.

        Raises
        ------
        StoreError
            The folder is not empty.
        FormatError
            The name or the id of the federation is malformed.
        """
        state = OfficeState(
            schema.name(name, "the name"),
            role,
            schema.federation(federation, "the federation"),
            server,
            address,
            ca,
        )
        return cls(
            OfficeFolder.create(path, state, _new_key(path) if key is None else key), carrier
        )

    @classmethod
    def open(cls, path: Path, carrier: Carrier | None = None, *, timeout: float = 0.0) -> Office:
        """Open the office in a folder.

        Parameters
        ----------
        path : Path
            The folder.
        carrier : Carrier or None, default None
            The way to the server; `connect` can give it later.
        timeout : float, default 0.0
            Seconds to wait for another process that has the office open.

        Returns
        -------
        Office
            The office, open.

        Raises
        ------
        StoreBusyError
            Another process has it open.
        StoreError
            The folder is not an office, is damaged, or was never enrolled.
        """
        folder = OfficeFolder.open(path, timeout)
        if not folder.state.enrolled:
            folder.close()
            raise StoreError(
                f"the office in {path} was never enrolled: enrol it by its token, expunge enroll "
                f"TOKEN --dir {shlex.quote(str(path))}"
            )
        return cls(folder, carrier)

    @classmethod
    def enrol(cls, path: Path, token: Token, carrier: Carrier, *, address: str = "") -> Office:
        """Enrol an officer or operator by a one-time token; after a lost answer, the same call
        again finishes the enrolment.

        Parameters
        ----------
        path : Path
            The folder of the new office, empty or not there.
        token : Token
            The token, for the role `officer` or `operator`.
        carrier : Carrier
            The way to the server.
        address : str, default ""
            Where the server is; empty for the token's first address.

        Returns
        -------
        Office
            The office, open.

        Raises
        ------
        ProtocolError
            The token is for a client.
        StoreError
            The folder is not empty, or is another office.
        RefusedError
            The token is used, expired or another's, or the name is taken.
        CarrierError
            No answer came: call again with the same folder and token.
        EvidenceError
            The server is not the one that the token names.
        """
        if token.role == "client":
            raise ProtocolError(
                f"the token of {token.name} is for a client, which has a store of samples, not an "
                "office"
            )
        where = address or (token.urls[0] if token.urls else "")
        doubtful = OfficeFolder.exists(path)  # an earlier attempt may have arrived
        office = cls(_draft(path, token, where), carrier)
        folder = office._folder
        try:
            answer = token.redeem(
                folder.key,
                office._checked_carrier(),
                spec="",
                signer=office._signer,
                undo=None if doubtful else folder.remove,
            )
            sequence = max(answer["sequence"], folder.state.sequence)
            folder.write(replace(folder.state, enrolled=True, sequence=sequence))
        except BaseException:
            office.close()
            raise
        return office

    def close(self) -> None:
        """Release the folder. The carrier stays open: it belongs to its opener."""
        self._folder.close()

    def __enter__(self) -> Office:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- who we are --------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder of the office."""
        return self._folder.path

    @property
    def name(self) -> str:
        """The name under which the server knows this office."""
        return self._folder.state.name

    @property
    def role(self) -> Role:
        """The role: `"officer"` or `"operator"`."""
        return self._folder.state.role

    @property
    def federation(self) -> str:
        """The federation's id, 32 hexadecimal digits."""
        return self._folder.state.federation

    @property
    def server(self) -> PublicKey:
        """The pinned public key of the server."""
        return self._folder.state.server

    @property
    def chain(self) -> KeyChain:
        """The pinned key and the keys that known rotations link to it."""
        return KeyChain(self._folder.state.server, self._folder.state.rotations)

    @property
    def address(self) -> str:
        """Where the server is: a URL, or the folder of a server on this machine."""
        return self._folder.state.address

    def move(self, address: str) -> None:
        """Look for the server at another address from now on.

        Parameters
        ----------
        address : str
            A URL, or a folder on this machine.
        """
        self._folder.write(replace(self._folder.state, address=address))

    @property
    def ca(self) -> str:
        """The PEM of the server's certificate authority; empty to trust the system's."""
        return self._folder.state.ca

    @property
    def under_way(self) -> str:
        """The action of a pending command, whose result has not come; empty if there is none."""
        data = self._pending()
        return "" if data is None else str(payloads.open_unverified("command", data)[1]["action"])

    def connect(self, carrier: Carrier) -> Office:
        """Use another way to the server from now on.

        Parameters
        ----------
        carrier : Carrier
            The way to the server.

        Returns
        -------
        Office
            This office.
        """
        self._carrier = carrier
        return self

    # -- speaking ----------------------------------------------------------------------------------

    def token(
        self, name: str, role: Role, urls: tuple[str, ...], *, days: int = 7, ca: str = ""
    ) -> tuple[Token, str]:
        """Make a one-time token, and tell the server of it; for operators.

        An earlier token for the same name is withdrawn.

        Parameters
        ----------
        name : str
            The name to enrol under. It is written to the log: name an institution, never a person.
        role : {"client", "officer", "operator"}
            What the holder may do.
        urls : tuple of str
            Where the holder reaches the server.
        days : int, default 7
            How long the token is good for, 1 to 365 days.
        ca : str, default ""
            The PEM of the certificate authority of these addresses; empty for the office's own. It
            is put into the token only if an address begins with `https://`.

        Returns
        -------
        token : Token
            The token, to be passed on confidentially.
        expires : str
            When it expires, in UTC.

        Raises
        ------
        RefusedError
            The name is malformed or taken, or this office is not an operator's.
        """
        has_tls = any(url.startswith("https://") for url in urls)
        token = Token(
            self.federation,
            name,
            role,
            self._folder.machine.random(_TOKEN_BYTES).hex(),
            self.chain.newest,
            urls,
            (ca or self.ca) if has_tls else "",
        )
        value = self.do(
            "token", {"name": name, "role": role, "secret": token.secret_digest, "days": days}
        )
        return token, str(value["expires"])

    def do(self, action: str, arguments: Mapping[str, Any]) -> Any:
        """Have a command carried out, exactly once.

        A pending command is finished first; if it is this very command, its result is returned.
        `notices` tells what became of another one.

        | action | arguments | value |
        |---|---|---|
        | `order` | `subject`, `subjects`, `days`, `reference` | the order, as `show-order` |
        | `close-order` | `order` | `order` |
        | `audit` | | `audit` |
        | `fold` | | `ledger` (salted), `round`, `samples` |
        | `amend` | `gamma`, `labels`, `messages`, `publication_bits` | `spec`, `head` (salted) |
        | `forget-client` | `client` | `client`, `count` |
        | `rotate-key` | | `key`, `rotation` |
        | `backup` | `name` | `file` |
        | `judge` | `verdict` (the arbiter's envelope) | `aggregation`, `false` |
        | `correct-clock` | `time` | `first`, `after`, `ahead` |

        Orders, audits and folds are for officers and operators, everything else for operators.
        `token` has a method of its own.

        Parameters
        ----------
        action : str
            What to do.
        arguments : mapping
            The arguments of the action, as JSON values.

        Returns
        -------
        object
            The value of the result, a JSON value.

        Raises
        ------
        RefusedError
            The server refused: nothing was changed by this attempt.
        CarrierError
            No answer came. The command is pending: call again.
        EvidenceError
            The answer is not the server's, not to this command, or not in the log.
        ProtocolError
            There is no carrier, or the office is in use in two places.
        """
        earlier = self._pending()
        if earlier is not None:
            pending = payloads.open_unverified("command", earlier)[1]
            if (pending["action"], pending["arguments"]) == (action, dict(arguments)):
                value = self._finish(earlier, doubtful=True)
                if value is not None:
                    return value[0]
            else:
                try:
                    self._finish_other(pending["action"], earlier)
                except ExpungeError as problem:
                    problem.add_note(
                        f"That is about the earlier command {pending['action']}, which has no "
                        "answer yet and comes first: this one was not begun. Try it again"
                    )
                    raise
        for _ in range(2):
            value = self._finish(self._begin(action, arguments), doubtful=False)
            if value is not None:
                return value[0]
        raise ProtocolError(
            f"the server expects another number for the next command of {self.name}, twice in a "
            "row: is this office at work in another place? Nothing was changed; try again"
        )

    def ask(self, action: str, arguments: Mapping[str, Any]) -> Any:
        """Ask a question, which changes nothing and is not logged.

        | question | arguments | answer |
        |---|---|---|
        | `status` | | the state of the federation |
        | `clients` | | every actor, with status and number of samples |
        | `clients` | `limit`, `after` | a page of `clients` after a name, and the `total` |
        | `orders` | | every order |
        | `orders` | `limit`, `before` | a page of `orders`, newest first, and the `total` |
        | `orders` | `named` | id and reference of those whose id begins so, or reference is so |
        | `show-order` | `order` | one order with its answers |
        | `bundle` | `order` | an envelope for `expunge.evidence.render_bundle` |
        | `audits` | | every audit |
        | `show-audit` | `audit` | one audit |
        | `disputes` | | masked sums that were false, and who has opened its part |
        | `show-dispute` | `aggregation` | what the arbiter needs about one of them |
        | `show-opening` | `aggregation`, `client` | what a client opened, sealed, in base64 |

        Parameters
        ----------
        action : str
            The question.
        arguments : mapping
            Its arguments, as JSON values.

        Returns
        -------
        object
            The answer, a JSON value.

        Raises
        ------
        RefusedError
            The server refused.
        CarrierError
            No answer came.
        EvidenceError
            The answer is not the server's, or not to this question.
        ProtocolError
            There is no carrier.
        """
        data = self._signed_command(0, action, arguments)
        return self._checked_answer(data, self._checked_carrier().command(data))

    def _finish_other(self, action: str, earlier: bytes) -> None:
        """Bring a command to its end whose answer nobody waits for any more, and say what became of
        it.

        One that is not taken any more, but may have been before, makes way: the next command gets
        its number, and is refused as out of step if that has been used.
        """
        try:
            done = self._finish(earlier, doubtful=True)
        except RefusedError as refusal:
            if refusal.code in refusals.PASSING:
                raise
            is_pending = self._folder.command() is not None
            self._folder.drop_command()
            became = (
                "is refused now, and may have been carried out before: look at the server's log"
                if is_pending
                else "was refused"
            )
            self.notices.append(
                f"the earlier command {action}, which had no answer, {became}: {refusal}"
            )
        else:
            became = "was not carried out" if done is None else "has been carried out, once"
            self.notices.append(f"the earlier command {action}, which had no answer, {became}")

    def _pending(self) -> bytes | None:
        """The command under way; one whose result was noted before a crash is dropped."""
        data = self._folder.command()
        if (
            data is not None
            and payloads.open_unverified("command", data)[1]["sequence"]
            <= self._folder.state.sequence
        ):
            self._folder.drop_command()
            return None
        return data

    def _begin(self, action: str, arguments: Mapping[str, Any]) -> bytes:
        data = self._signed_command(self._folder.state.sequence + 1, action, arguments)
        self._folder.write_command(data)
        return data

    def _signed_command(self, sequence: int, action: str, arguments: Mapping[str, Any]) -> bytes:
        content = {
            "action": action,
            "actor": self.name,
            "arguments": dict(arguments),
            "federation": self.federation,
            "nonce": self._folder.machine.random(_NONCE_BYTES).hex(),
            "sequence": sequence,
        }
        return payloads.sign("command", content, self._folder.key)

    def _finish(self, data: bytes, *, doubtful: bool) -> tuple[Any] | None:
        """Offer a command until its end: the value in a tuple, or None if its number was not the
        next one.

        Refused or of another number, it has not taken effect and never will: the same bytes would
        have been answered. But some refusals come before its number is looked up: after those it is
        kept if an earlier attempt was `doubtful`.
        """
        try:
            answer = self._checked_carrier().command(data)
        except RefusedError as refusal:
            if refusal.code == "storage" or (
                doubtful and refusal.code in refusals.PASSING | refusals.UNREAD
            ):
                raise
            self._folder.drop_command()
            if refusal.code not in refusals.OUT_OF_STEP:
                raise
            self._folder.write(replace(self._folder.state, sequence=self._last_number()))
            return None
        value = self._checked_answer(data, answer)
        command = payloads.open_unverified("command", data)[1]
        self._note_order(command["action"], command["arguments"], value)
        self._folder.write(replace(self._folder.state, sequence=command["sequence"]))
        self._folder.drop_command()
        return (value,)

    # -- orders ------------------------------------------------------------------------------------

    def _note_order(self, action: str, arguments: Mapping[str, Any], value: Any) -> None:
        """Keep the id of an order before its command is let go: a restored server may lose it."""
        order_ids = self._folder.orders()
        if action == "order" and value["order"] not in order_ids:
            self._folder.write_orders([*order_ids, value["order"]])
        if action == "close-order":
            self.drop_order(arguments["order"])

    @property
    def filed(self) -> list[str]:
        """The ids of the orders that this office filed and has not closed, the oldest first."""
        return self._folder.orders()

    def drop_order(self, order: str) -> None:
        """Remove an order from `filed`: it is closed, or was filed again under another id.

        Parameters
        ----------
        order : str
            The id of the order; one that is not there is ignored.
        """
        order_ids = self._folder.orders()
        if order in order_ids:
            self._folder.write_orders([each for each in order_ids if each != order])

    # -- answers -----------------------------------------------------------------------------------

    def _checked_answer(self, data: bytes, answer: bytes) -> Any:
        """The value of a result, once it is seen to be the answer to exactly these bytes."""
        envelope = Envelope.from_bytes(answer, "result")
        self._signer(envelope)
        result, command = (
            Result.read(envelope, self.chain),
            payloads.open_unverified("command", data)[1],
        )
        for name in ("federation", "actor", "sequence", "action"):
            if getattr(result, name) != command[name]:
                raise EvidenceError(
                    f"the server answered another command: its {name} is "
                    f"{getattr(result, name)!r:.80}"
                )
        content = result.result
        # a command's answer names its digest instead
        expected = "" if command["sequence"] else command["nonce"]
        if (
            not isinstance(content, dict)
            or set(content) != {"nonce", "value"}
            or content["nonce"] != expected
        ):
            raise EvidenceError(
                "the server's answer is not to this command but to an earlier one: its nonce "
                "differs"
            )
        if (
            result.logged is not None
            and result.logged.entry["command"] != hashlib.sha256(data).hexdigest()
        ):
            raise EvidenceError(
                "the log entry that the server shows is of another command than the one that was "
                "asked for"
            )
        return content["value"]

    def _last_number(self) -> int:
        """The number of the last command that the server carried out for this office."""
        nonce = self._folder.machine.random(_NONCE_BYTES).hex()
        content = {
            "actor": self.name,
            "federation": self.federation,
            "nonce": nonce,
            "sequence": 0,
            "size": 0,
        }
        envelope, answer = payloads.open_unverified(
            "answer",
            self._checked_carrier().sync(payloads.sign("question", content, self._folder.key)),
        )
        self._signer(envelope)
        self.chain.verify(envelope, lambda content: (content["federation"], content["time"]))
        if (answer["actor"], answer["federation"], answer["nonce"]) != (
            self.name,
            self.federation,
            nonce,
        ):
            raise EvidenceError("the server answered another question than the one that was asked")
        return int(answer["sequence"])

    def _signer(self, envelope: Envelope) -> PublicKey:
        """The key that signed, if it is the server's; rotations are asked for where it is not known
        yet.
        """
        key_id = envelope.signatures[0][0]
        if key_id not in self._keys():
            self.federation_content()
        keys = self._keys()
        if key_id not in keys:
            raise EvidenceError(
                f"the server's answer is signed by key {key_id[:16]}…, which is not the pinned "
                f"key {self.server.id[:16]}… nor "
                "linked to it by a rotation: this is not the server that was enrolled at"
            )
        return keys[key_id]

    def _keys(self) -> dict[str, PublicKey]:
        keys = [
            self.server,
            *(key for step in self.chain.rotations for key in (step.old, step.new)),
        ]
        return {key.id: key for key in keys}

    def federation_content(self) -> dict[str, Any]:
        """Ask what the server says of its federation, and store its rotations.

        Returns
        -------
        dict
            `spec` (whole), `limits` (`largest_request` in bytes, `erase_within` in seconds),
            `rotations`, `server`, `checkpoint` and `federation`.

        Raises
        ------
        EvidenceError
            The answer is not the pinned server's, or of another federation.
        CarrierError
            No answer came.
        ProtocolError
            There is no carrier.
        """
        content, rotations = read_federation(self._checked_carrier().federation(), self.server)
        if content["federation"] != self.federation:
            raise EvidenceError(
                f"the server is of federation {content['federation']}, not of {self.federation}"
            )
        if tuple(rotations) != tuple(self._folder.state.rotations):
            self._folder.write(replace(self._folder.state, rotations=tuple(rotations)))
        return content

    def _checked_carrier(self) -> Carrier:
        if self._carrier is None:
            raise ProtocolError(
                f"the office of {self.name} has no way to its server: connect it to a carrier first"
            )
        return CheckedCarrier(self._carrier)


def _new_key(path: Path) -> SigningKey:
    return SigningKey(machine_of(path).random(_KEY_BYTES))


def _draft(path: Path, token: Token, address: str) -> OfficeFolder:
    """The folder of an office that is to be enrolled: a new one, or one whose enrolment by this
    token got no answer.
    """
    if not OfficeFolder.exists(path):
        state = OfficeState(
            token.name,
            token.role,
            token.federation,
            token.server,
            address,
            token.ca,
            enrolled=False,
        )
        return OfficeFolder.create(path, state, _new_key(path))
    folder = OfficeFolder.open(path)
    state = folder.state
    if state.enrolled or (state.name, state.federation) != (token.name, token.federation):
        folder.close()
        raise StoreError(f"{path} is the office of {state.name} already: choose another folder")
    folder.write(replace(state, address=address, ca=token.ca))
    return folder
