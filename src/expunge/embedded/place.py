"""A federation's folder on the machine of its server, as `expunge init` lays it out.

server/            the server's own folder (expunge.server.folder)
operator/          the first operator's office; move it to the operator's own machine if that is another one
tls/               the certificate authority, and the server's certificate
server.pub         the server's public key: what `expunge verify --key` takes
federation.json    where the server can be reached, and the mirrors of its vault
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from expunge.errors import StoreError
from expunge.files import write_whole

_SETTINGS, _SERVING = "federation.json", "serving.json"


@dataclass(frozen=True)
class Place:
    """The paths of one federation."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Place:
        """The federation in a folder, which may also be given as the `server` folder within it."""
        whole = path.absolute()
        for candidate in (whole, whole.parent):
            if (candidate / "server" / "server.db").exists():
                return cls(candidate)
        raise StoreError(f"there is no federation in {path}: found one with expunge init {path}")

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Whether there is a federation in a folder."""
        return any((candidate / "server" / "server.db").exists() for candidate in (path.absolute(), path.absolute().parent))

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

    def write_settings(self, *, urls: Sequence[str], mirrors: Sequence[Path]) -> None:
        """Note where the server will be reached, and its vault's mirrors."""
        content = {"urls": list(urls), "mirrors": [str(mirror.absolute()) for mirror in mirrors]}
        write_whole(self.path / _SETTINGS, (json.dumps(content, indent=2) + "\n").encode(), mode=0o644)

    def _settings(self) -> dict[str, list[str]]:
        file = self.path / _SETTINGS
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return {name: [str(value) for value in content[name]] for name in ("urls", "mirrors")}
        except FileNotFoundError:
            return {"urls": [], "mirrors": []}
        except (ValueError, TypeError, KeyError) as problem:
            raise StoreError(f'{file} cannot be read: it must be {{"urls": [...], "mirrors": [...]}}; {problem}') from problem

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the server is meant to be reached; empty for a federation within one machine."""
        return tuple(self._settings()["urls"])

    @property
    def mirrors(self) -> tuple[Path, ...]:
        """The mirrors of the server's vault."""
        return tuple(Path(text) for text in self._settings()["mirrors"])

    # -- while a server is running --------------------------------------------------------------------------------------

    def write_serving(self, url: str) -> None:
        """Note that this process serves the federation."""
        write_whole(self.server / _SERVING, json.dumps({"pid": os.getpid(), "url": url}).encode(), mode=0o644)

    def drop_serving(self) -> None:
        """The server has stopped."""
        (self.server / _SERVING).unlink(missing_ok=True)

    def serving(self) -> str:
        """The URL that the process at work on the server's folder serves at; empty if it serves none."""
        try:
            told = json.loads((self.server / _SERVING).read_text(encoding="utf-8"))
            holder = int((self.server / "lock").read_text(encoding="ascii"))
            url = str(told["url"]) if told["pid"] == holder else ""
            os.kill(holder, 0)  # a note that was left by a server that was killed does not count
        except (FileNotFoundError, ProcessLookupError, ValueError, TypeError, KeyError):
            return ""
        except PermissionError:  # it lives, and is somebody else's
            pass
        return url
