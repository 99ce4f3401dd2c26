"""What a disk holds, and what of it would be there after the power was cut.

The files are real ones, below a folder of this computer, so that they can be read as ever. Beside
them this module keeps what has been made durable: the content of a file by a sync of the file, its
name by a sync of its folder. A cut of the power leaves, of everything that was not, any part: of
the changes of a file any, in any order, torn between sectors; of the changes of a folder the first
few.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from expunge.storage.machine import THIS

SECTOR = 512  # bytes that a disk writes whole or not at all
_NOT_CONTENT = frozenset({"lock"})  # it names a process of this computer


class CrashedError(BaseException):
    """The machine has stopped: nothing that its programs do has any effect."""


class File:
    """A file: its durable bytes, and the changes since: a place and bytes, or a new size."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        self.pending: list[tuple[int, bytes] | int] = []

    def sync(self) -> None:
        """Everything is durable."""
        for change in self.pending:
            _apply(self.durable, change)
        self.pending = []

    def forget(self) -> None:
        """A sync failed: what was to be written never will be, though it can still be read."""
        self.pending = []

    def cut(self, chance: Random, loss: float) -> None:
        """The power is cut; each change is lost, or torn, with this probability."""
        for change in self.pending:
            if chance.random() >= loss:
                _apply(self.durable, change)
            elif not isinstance(change, int) and chance.random() < 0.5:
                for part in _sectors(*change):
                    if chance.random() < 0.5:
                        _apply(self.durable, part)
        self.pending = []


class Folder:
    """A folder: which files and folders it has, and had when it was last synced."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        # Each of them happens whole or not at all: names, and what has them from then on.
        self.pending: list[dict[str, Node | None]] = []

    def change(self, change: dict[str, Node | None]) -> None:
        """Give names to something else, or (None) to nothing."""
        _rename(self.entries, change)
        self.pending.append(change)

    def sync(self) -> None:
        """The names are durable, not what has them."""
        for change in self.pending:
            _rename(self.durable, change)
        self.pending = []

    def cut(self, chance: Random, loss: float) -> None:
        """The power is cut: the first changes happened."""
        kept = len(self.pending)
        if chance.random() < loss:
            kept = chance.randint(0, kept)
        for change in self.pending[:kept]:
            _rename(self.durable, change)
        self.entries, self.pending = dict(self.durable), []
        for node in self.entries.values():
            node.cut(chance, loss)

    def files(self) -> Iterator[tuple[str, File]]:
        """All files below, by their path."""
        for name, node in sorted(self.entries.items()):
            if isinstance(node, File):
                yield name, node
            else:
                for path, file in node.files():
                    yield f"{name}/{path}", file


Node = File | Folder


class Disk:
    """The disk of one machine, with its files below a folder of this computer."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.root = Folder()
        self.removed: list[File] = []  # whose sectors may still be read by who has the disk
        self.path.mkdir(parents=True, exist_ok=True)

    # -- where things are --------------------------------------------------------------------------

    def folder(self, path: Path) -> Folder:
        """The folder at a path."""
        node = self._find(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(f"{path} is no folder of the simulated disk {self.path}")
        return node

    def file(self, path: Path) -> File | None:
        """The file at a path, if there is one."""
        node = self._find(path)
        return node if isinstance(node, File) else None

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for part in path.absolute().relative_to(self.path).parts:
            node = node.entries.get(part) if isinstance(node, Folder) else None
        return node

    # -- changing ----------------------------------------------------------------------------------

    def create(self, path: Path) -> File:
        """A new file, which is empty."""
        file = File()
        self.folder(path.parent).change({path.name: file})
        return file

    def make_folder(self, path: Path) -> None:
        """A new folder, unless it is there."""
        if self._find(path) is None:
            self.folder(path.parent).change({path.name: Folder()})

    def rename(self, path: Path, target: Path) -> None:
        """Another name in the same folder, in place of what has it."""
        if path.parent != target.parent:
            raise ValueError(f"{path} cannot be moved to another folder, as to {target}")
        folder = self.folder(path.parent)
        self._removed(folder.entries.get(target.name))
        folder.change({path.name: None, target.name: folder.entries[path.name]})

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder and everything in it."""
        folder = self.folder(path.parent)
        if path.name in folder.entries:
            self._removed(folder.entries[path.name])
            folder.change({path.name: None})

    def forget_removed(self) -> None:
        """What was removed is on another disk, or in other hands."""
        self.removed = []

    def _removed(self, node: Node | None) -> None:
        if isinstance(node, File):
            self.removed.append(node)
        elif isinstance(node, Folder):
            self.removed += (file for _, file in node.files())

    # -- accidents ---------------------------------------------------------------------------------

    def cut_power(self, chance: Random, loss: float) -> None:
        """What has not been made durable is lost, or not, or in part."""
        self.root.cut(chance, loss)
        self._write_out()

    def copy(self) -> dict[str, bytes]:
        """All that can be read now, by path."""
        return {name: (self.path / name).read_bytes() for name, _ in self.root.files()}

    def put_back(self, copy: dict[str, bytes], below: str) -> None:
        """A folder is again what it was in a copy of the disk."""
        target = self.path / below
        self.remove(target)
        self.folder(target.parent).change({target.name: Folder()})
        for name, data in copy.items():
            if name.startswith(f"{below}/"):
                for folder in reversed((self.path / name).relative_to(self.path).parents[:-1]):
                    self.make_folder(self.path / folder)
                self.create(self.path / name).durable[:] = data
        self._settle(self.root)
        self._write_out()

    def flip(self, name: str, bit: int) -> None:
        """A bit of a file changes by itself."""
        content = bytearray((self.path / name).read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        self.write(name, bytes(content))

    def truncate(self, name: str, size: int) -> None:
        """The end of a file is lost."""
        self.write(name, (self.path / name).read_bytes()[:size])

    def write(self, name: str, content: bytes) -> None:
        """A file has another content, whoever wrote it."""
        file = self.file(self.path / name)
        if file is None:
            raise FileNotFoundError(f"{name} is not on the simulated disk {self.path}")
        file.durable[:], file.pending = content, []
        (self.path / name).write_bytes(content)

    def _settle(self, node: Node) -> None:
        node.sync()
        for inner in node.entries.values() if isinstance(node, Folder) else ():
            self._settle(inner)

    def _write_out(self) -> None:
        """Make the real files what the durable ones are."""
        for path in list(self.path.iterdir()):
            shutil.rmtree(path) if path.is_dir() else THIS.remove(path)
        _write_out(self.root, self.path)

    # -- looking -----------------------------------------------------------------------------------

    def digest(self) -> bytes:
        """A hash of every name and byte that can be read."""
        digest = hashlib.sha256()
        for name, data in self.copy().items():
            if Path(name).name not in _NOT_CONTENT:
                digest.update(f"{name} {len(data)}\n".encode())
                digest.update(data)
        return digest.digest()

    def finds(self, secrets: Sequence[bytes]) -> set[int]:
        """Which of these bytes are anywhere on the disk, also where files have been removed."""
        images = [*self.copy().values(), *(bytes(file.durable) for file in self.removed)]
        return {
            number
            for number, secret in enumerate(secrets)
            if any(secret in image for image in images)
        }


def _write_out(folder: Folder, path: Path) -> None:
    for name, node in folder.entries.items():
        if isinstance(node, File):
            (path / name).write_bytes(node.durable)
            (path / name).chmod(0o600)
        else:
            (path / name).mkdir(mode=0o700)
            _write_out(node, path / name)


def _rename(entries: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    offset, data = change
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """A write, cut where sectors end."""
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        yield offset + start, data[start:end]
        start = end
