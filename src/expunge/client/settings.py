"""A client's settings: its identity, the spec, the server's key, the log as last seen, documents
and the head; and pins, the keys of other clients that were compared out of band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from expunge.client.folder import ClientFolder, exclusive, put_settings
from expunge.crypto import Envelope, PublicKey, SigningKey, canonical
from expunge.errors import FormatError, InputError, StoreDamagedError, StoreError
from expunge.evidence import KeyChain
from expunge.kinds import MESSAGES, MessageKind
from expunge.ridge.spec import Label, Spec
from expunge.wire import schema

_APPEND = (
    "INSERT INTO documents (kind, number, content) SELECT ?1, coalesce(max(number) + 1, 0), ?2 "
    "FROM documents WHERE kind = ?1"
)
_CHECKPOINT = schema.objects({"root": schema.string, "size": schema.count})
_FORMER = (
    "former-server"  # the kind of document in which the keys of a server that was lost are kept
)


class ClientSettings:
    """The settings and documents of a store. Setting names are internal; values are texts."""

    def __init__(self, folder: ClientFolder) -> None:
        self._folder = folder
        self._database = folder.database
        self._recalled: dict[str, str | None] = {}  # a cache: of the database at this version
        self._version: int | None = None
        self._spec = spec_of(self.setting("spec"))

    @exclusive
    def recall(self, name: str) -> str | None:
        """A setting, or None if there is none of that name.

        Parameters
        ----------
        name : str
            The name of the setting.

        Returns
        -------
        str or None
            Its value.
        """
        version = self._database.version
        if version is None or version != self._version:
            self._recalled, self._version = {}, version
        if name not in self._recalled:
            value = self._database.value("SELECT value FROM settings WHERE name = ?", (name,))
            self._recalled[name] = None if value is None else str(value)
        return self._recalled[name]

    @exclusive
    def remember(self, settings: Mapping[str, str]) -> None:
        """Change settings, all of them or none; for the agent.

        Parameters
        ----------
        settings : mapping of str to str
            The new values by name.
        """
        with self._database.transaction() as changes:
            put_settings(changes, settings)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The names of the features in the first table or file of columns that was added; None if
        there was none.
        """
        text = self.recall("feature-names")
        return None if text is None else tuple(canonical.decode(text.encode("utf-8")))

    def setting(self, name: str) -> str:
        """A setting that every store has.

        Parameters
        ----------
        name : str
            The name of the setting.

        Returns
        -------
        str
            Its value.

        Raises
        ------
        StoreError
            The setting is missing: the store is damaged.
        """
        value = self.recall(name)
        if value is None:
            raise StoreError(
                f"the store in {self.path} has no setting {name!r}: it is damaged; put it back "
                "from a backup"
            )
        return value

    def number(self, name: str, default: int) -> int:
        """A setting that is a number; `default` if there is none.

        Parameters
        ----------
        name : str
            The name of the setting.
        default : int
            What it is where it was never set, or is empty.

        Returns
        -------
        int
            Its value.

        Raises
        ------
        StoreDamagedError
            It is no number.
        """
        value = self.recall(name)
        try:
            return int(value) if value else default
        except ValueError as problem:
            raise StoreDamagedError(
                f"the setting {name!r} of the store in {self.path} is no number. "
                f"{self._database.remedy}"
            ) from problem

    def label(self, index: int) -> Label:
        """The label of a class index.

        Parameters
        ----------
        index : int
            As it is stored with a sample.

        Returns
        -------
        str or int
            The label of the spec.

        Raises
        ------
        StoreDamagedError
            The spec has no such label.
        """
        labels = self._spec.labels or ()
        if not 0 <= index < len(labels):
            raise StoreDamagedError(
                f"a sample in {self.path} has a label that the spec does not have. "
                f"{self._database.remedy}"
            )
        return labels[index]

    @property
    def path(self) -> Path:
        """The client's folder."""
        return self._folder.path

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was found damaged or missing of the store's vault, and has done no harm yet."""
        return tuple(self._folder.vault.warnings)

    @property
    def key(self) -> SigningKey:
        """The key that signs this client's requests."""
        return self._folder.key

    @property
    def spec(self) -> Spec:
        """The federation's spec, as amended so far."""
        return self._spec

    @property
    def federation(self) -> str:
        """The federation's id, 32 hexadecimal digits."""
        return self.setting("federation")

    @property
    def name(self) -> str:
        """The client's name."""
        return self.setting("name")

    @property
    def server(self) -> PublicKey:
        """The pinned key of the server; `chains` has the keys that rotations link to it."""
        return PublicKey.from_text(self.setting("server"))

    @property
    def address(self) -> str:
        """Where the server is: a URL, or the folder of a server on this machine."""
        return self.setting("address")

    @property
    def ca(self) -> str:
        """The PEM of the server's certificate authority; empty to trust the system's."""
        return self.setting("ca")

    @property
    def mode(self) -> str:
        """Whether features are kept (`"cached"`) or computed again (`"recompute"`)."""
        return self.setting("mode")

    @property
    def message(self) -> MessageKind:
        """The kind of messages that this client sends; `choose` changes it."""
        return schema.one_of(*MESSAGES)(self.setting("message"), "the kind of messages")

    @property
    def sequence(self) -> int:
        """The number of the last request whose receipt is here."""
        self.setting("sequence")
        return self.number("sequence", 0)

    @property
    def gone(self) -> bool:
        """Whether the server has said that it no longer knows this client."""
        return self.recall("gone") == "1"

    @property
    def is_resetting(self) -> bool:
        """Whether the next request is to replace all that the server holds of this client."""
        return bool(self.recall("reset"))

    @property
    def checkpoint(self) -> tuple[int, bytes]:
        """The size and root of the audit log when it was last seen and found consistent."""
        return _checkpoint_of(self.setting("checkpoint"))

    @exclusive
    def amend(self, spec: Spec, envelopes: Sequence[bytes] = ()) -> None:
        """Take over an amended spec, and store the envelopes that amend it; for the agent.

        Samples stay as they are.

        Parameters
        ----------
        spec : Spec
            The amended spec.
        envelopes : sequence of bytes, default ()
            The signed amendments that lead to it.

        Raises
        ------
        SpecMismatchError
            The amended spec is not this client's spec with allowed changes.
        """
        spec.require_amends(self._spec)
        with self._database.transaction() as changes:
            changes.run("UPDATE settings SET value = ? WHERE name = 'spec'", (spec_text(spec),))
            changes.run_many(_APPEND, [("amendment", envelope) for envelope in envelopes])
        self._spec = spec

    @exclusive
    def move(self, *, federation: str, server: PublicKey, address: str, ca: str) -> None:
        """Belong to another federation from now on, whose server has enrolled this store's key; all
        of it or nothing.

        Samples, receipts and numbering stay. The keys of the former server are kept, because what
        they signed still holds.

        Parameters
        ----------
        federation : str
            The id of the new federation.
        server : PublicKey
            Its server's key, which is pinned.
        address : str
            Where that server is.
        ca : str
            The PEM of its certificate authority, or empty.
        """
        rotations = [
            Envelope.from_bytes(data, "rotation").to_json()
            for data in self.documents("rotation").values()
        ]
        former = canonical.encode({"rotations": rotations, "server": self.server.text})
        changed = {
            "federation": schema.federation(federation, "the federation"),
            "server": server.text,
            "address": address,
            "ca": ca,
            "checkpoint": checkpoint_text(0, b""),
            "entry": "-1",
            "enrolled": "1",
        }
        with self._database.transaction() as changes:
            changes.run_many(_APPEND, [(_FORMER, former)])
            changes.run("DELETE FROM documents WHERE kind = 'rotation'")
            put_settings(changes, changed)

    def chains(self) -> list[KeyChain]:
        """The keys of this client's server, then those of servers that it had before.

        Returns
        -------
        list of KeyChain
            The first is the current server's; receipts of the others still hold.
        """
        rotations = [
            Envelope.from_bytes(data, "rotation") for data in self.documents("rotation").values()
        ]
        chains = [KeyChain(self.server, rotations)]
        for data in self.documents(_FORMER).values():
            content = canonical.decode(data, "what is known of a former server")
            links = [Envelope.from_json(value, "rotation") for value in content["rotations"]]
            chains.append(KeyChain(PublicKey.from_text(content["server"]), links))
        return chains

    @exclusive
    def keep(self, kind: str, *contents: bytes) -> None:
        """Append documents of a kind; for the agent.

        Parameters
        ----------
        kind : str
            What they are, such as `"rotation"`.
        *contents : bytes
            The documents, in their order.
        """
        with self._database.transaction() as changes:
            changes.run_many(_APPEND, [(kind, content) for content in contents])

    @exclusive
    def documents(self, kind: str) -> dict[int, bytes]:
        """The stored documents of a kind.

        Parameters
        ----------
        kind : str
            Such as `"receipt"`, `"rotation"` or `"amendment"`.

        Returns
        -------
        dict of int to bytes
            The bytes by number: receipts by sequence number, others counted from 0.
        """
        rows = self._database.rows(
            "SELECT number, content FROM documents WHERE kind = ? ORDER BY number", (kind,)
        )
        return {number: bytes(content) for number, content in rows}

    @exclusive
    def put_head(self, data: bytes, digest: str) -> None:
        """Replace the newest head; for the agent.

        Nothing is kept of the previous one: its digest would confirm a guess at what was deleted.

        Parameters
        ----------
        data : bytes
            The file of the head.
        digest : str
            The head's digest.
        """
        self._folder.write_head(data)
        self.remember({"head": digest})
        self._database.truncate_log()

    @exclusive
    def drop_head(self) -> None:
        """Remove the head: an old one would remember what has been deleted since; for the agent."""
        self.remember({"head": ""})
        self._folder.drop_head()
        self._database.truncate_log()

    @exclusive
    def head(self) -> bytes | None:
        """The newest head that was fetched, with its certificate.

        Returns
        -------
        bytes or None
            The file, for `expunge.evidence.published_head.read`; None if there is none.
        """
        return self._folder.read_head()

    @exclusive
    def close(self) -> None:
        """Close the files and release the folder."""
        self._folder.close()


def spec_text(spec: Spec) -> str:
    """A spec as a setting."""
    return canonical.encode(spec.to_dict()).decode("ascii")


@lru_cache(maxsize=16)  # it is read for every request, and seldom changes
def spec_of(text: str) -> Spec:
    """The inverse of `spec_text`."""
    return Spec.from_dict(canonical.decode(text.encode(), "the spec of the store"))


def checkpoint_text(size: int, root: bytes) -> str:
    """A checkpoint as a setting."""
    return canonical.encode({"root": root.hex(), "size": size}).decode("ascii")


@lru_cache(maxsize=16)
def _checkpoint_of(text: str) -> tuple[int, bytes]:
    what = "the checkpoint of the store"
    value = _CHECKPOINT(canonical.decode(text.encode(), what), what)
    try:
        return value["size"], bytes.fromhex(value["root"])
    except ValueError as problem:
        raise FormatError(f"{what} is damaged: {problem}") from problem


def read_pins(text: str | None) -> dict[str, str]:
    """Pins as a JSON object of names and public keys; none, if there is nothing."""
    if not text:
        return {}
    pins: dict[str, str] = schema.mapping(schema.name, schema.key_text)(
        canonical.decode(text.encode(), "the pins"), "the pins"
    )
    return pins


def pins_text(pins: Mapping[str, str]) -> str:
    """The inverse of `read_pins`."""
    for name, key in pins.items():
        schema.name(name, "the name of a pin")
        try:
            PublicKey.from_text(key)
        except Exception as problem:
            raise InputError(f"the key pinned for {name} is no public key: {problem}") from problem
    return canonical.encode(dict(pins)).decode("ascii") if pins else ""
