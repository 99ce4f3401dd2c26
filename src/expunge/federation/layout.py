"""A federation's folder on the machine of its server, as `expunge init` lays it out.

server/            the server's own folder (expunge.server.storage)
operator/          the first operator's office; move it to the operator's own machine if that
                   is another one
tls/               the certificate authority, and the server's certificate
server.pub         the server's public key: what `expunge verify --key` takes
rotation-N.json    the N-th rotation of that key: what `expunge verify --rotation` takes
federation.json    where the server can be reached, the mirrors of its vault, and whether it was
                   rebuilt from its clients
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expunge.crypto import Envelope, PublicKey, SigningKey
from expunge.errors import StoreError
from expunge.server import DATABASE, KEY
from expunge.storage.files import remove, write_whole

LOCAL_NAMES = ("localhost", "127.0.0.1")
_SETTINGS, _SERVING = "federation.json", "serving.json"


def url_of(host: str, port: int) -> str:
    """Where a server is reached under a name or address."""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


@dataclass(frozen=True)
class Layout:
    """The paths of one federation.

    Attributes
    ----------
    path : Path
        The folder of the federation.
    """

    path: Path

    @classmethod
    def at(cls, path: Path) -> Layout:
        """The federation in a folder, which may also be given as the `server` folder within it."""
        whole = path.absolute()
        for candidate in (whole, whole.parent):
            if (candidate / "server" / DATABASE).exists():
                return cls(candidate)
        raise StoreError(
            f"there is no federation in {path}. If its server has moved, give the folder or the "
            "address where it is now (--at); if it is lost, restore it (expunge server restore). "
            f"Only a new federation begins with expunge init {shlex.quote(str(path))}"
        )

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Whether there is a federation in a folder."""
        return any(
            (candidate / "server" / DATABASE).exists()
            for candidate in (path.absolute(), path.absolute().parent)
        )

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.path / "server"

    @property
    def operator(self) -> Path:
        """The first operator's office."""
        return self.path / "operator"

    @property
    def tls(self) -> Path:
        """Certificates and their keys."""
        return self.path / "tls"

    @property
    def public_key(self) -> Path:
        """The server's public key, in PEM."""
        return self.path / "server.pub"

    @property
    def ca(self) -> str:
        """The PEM of the federation's own certificate authority, or empty."""
        file = self.tls / "ca.pem"
        return file.read_text(encoding="ascii") if file.exists() else ""

    # -- the server's keys -------------------------------------------------------------------------

    def signing_key(self) -> PublicKey:
        """The public half of the key that the server signs with."""
        file = self.server / KEY
        if not file.exists():
            raise StoreError(
                f"{file} is missing: put the server's signing key back from where you keep its copy"
            )
        return SigningKey.from_pem(file.read_bytes()).public

    def rotations(self) -> list[Envelope]:
        """The rotations of the server's key, the oldest first; also while a server is running."""
        from expunge.server.storage.sqlite import rotations_of  # noqa: PLC0415 - not for clients

        rotations = rotations_of(self.server / DATABASE)
        return [Envelope.from_bytes(data, "rotation") for data in rotations]

    def write_keys(self, newest: PublicKey, rotations: Sequence[Envelope]) -> list[Path]:
        """Bring server.pub and the rotations beside it up to date; the files of the rotations, the
        oldest first.
        """
        files = []
        for number, envelope in enumerate(rotations, start=1):
            files.append(self.path / f"rotation-{number}.json")
            write_whole(files[-1], envelope.to_bytes() + b"\n", mode=0o644)
        write_whole(self.public_key, newest.pem, mode=0o644)
        return files

    # -- settings ----------------------------------------------------------------------------------

    def write_settings(
        self, *, urls: Sequence[str], mirrors: Sequence[Path], rebuilt: bool = False
    ) -> None:
        """Note where the server will be reached, its vault's mirrors, and whether it stands in the
        place of a lost one.
        """
        content: dict[str, object] = {
            "urls": list(urls),
            "mirrors": [str(mirror.absolute()) for mirror in mirrors],
        }
        content |= {"rebuilt": True} if rebuilt else {}
        write_whole(
            self.path / _SETTINGS, (json.dumps(content, indent=2) + "\n").encode(), mode=0o644
        )

    @property
    def rebuilt(self) -> bool:
        """Whether this server was rebuilt from the clients of a lost one."""
        return bool(self._settings()["rebuilt"])

    def _settings(self) -> dict[str, Any]:
        file = self.path / _SETTINGS
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            lists = {name: [str(value) for value in content[name]] for name in ("urls", "mirrors")}
            return {**lists, "rebuilt": content.get("rebuilt", False)}
        except FileNotFoundError:
            return {"urls": [], "mirrors": [], "rebuilt": False}
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise StoreError(
                f'{file} cannot be read: it must be {{"urls": [...], "mirrors": [...]}}; {problem}'
            ) from problem

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the server is meant to be reached; empty for a federation within one machine."""
        return tuple(self._settings()["urls"])

    @property
    def mirrors(self) -> tuple[Path, ...]:
        """The mirrors of the server's vault."""
        return tuple(Path(text) for text in self._settings()["mirrors"])

    # -- while a server is running -----------------------------------------------------------------

    def write_serving(self, url: str) -> None:
        """Note that this process serves the federation."""
        write_whole(
            self.server / _SERVING,
            json.dumps({"pid": os.getpid(), "url": url}).encode(),
            mode=0o644,
        )

    def drop_serving(self) -> None:
        """Of a process that serves no longer; the note of another one, or of none, is left
        alone.
        """
        file = self.server / _SERVING
        try:
            writer = json.loads(file.read_text(encoding="utf-8"))["pid"]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return
        if writer == os.getpid():
            remove(file)

    def serving(self) -> str:
        """The URL that the process at work on the server's folder serves at; empty if it serves
        none.
        """
        try:
            note = json.loads((self.server / _SERVING).read_text(encoding="utf-8"))
            holder = int((self.server / "lock").read_text(encoding="ascii"))
            url = str(note["url"]) if note["pid"] == holder else ""
            os.kill(holder, 0)  # a note that was left by a server that was killed does not count
        except (FileNotFoundError, ProcessLookupError, ValueError, TypeError, KeyError):
            return ""
        except PermissionError:  # it lives, and is somebody else's
            pass
        return url
