"""Flips single bits in the files of a federation that was killed: none may be silently wrong.

Run as a program: `damage.py COUNT`, or `make damage`. It flips every bit of every subject tag of a
client's database, one bit in each frame of every write-ahead log, and COUNT bits anywhere, each in
a fresh copy of the files. Then somebody is ordered to be forgotten, everybody syncs, and an audit
is made. Either an error of ours tells the damage, or the head is that of a retrain on what was
written down outside Expunge. (Every bit of a vault's header and of its slots:
tests/crypto/test_vault_damage.py.) EXPUNGE_SEED says what is drawn.
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from expunge import Spec, Statistics, solve
from expunge.client import ClientStore, Selection
from expunge.client.folder import ClientFolder
from expunge.errors import ExpungeError, StoreDamagedError
from expunge.evidence import verify
from expunge.federation import Federation
from support import seeds
from support.operations import DIM, LABELS, sample

SPEC = Spec(dim=DIM, labels=LABELS, gamma=1.0)
CLIENTS = ("north", "south")
SUBJECTS = ("ann", "ben", "ann", "eve", "ann")
FORGOTTEN = "ann"
TAG_BYTES = 32
_FRAME, _HEADER = 24, 32  # bytes before each frame of a write-ahead log, and before all of them
_WRITTEN = 0.8  # how often a bit flips where there is something
_SHOWN = 100
Flip = tuple[str, int]  # the file, and the number of the bit


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Left:
    """The folder of a federation as a kill leaves it."""

    def __init__(self, path: Path) -> None:
        self.path, self._trial = path / "left", path / "trial"
        with Federation.found(path / "federation", SPEC) as federation:
            for name in CLIENTS:
                ids = [f"{name} {number}" for number in range(len(SUBJECTS))]
                rows = [sample(id_, 0) for id_ in ids]
                features, labels = [row[0] for row in rows], [row[1] for row in rows]
                federation.client(name).add(ids, features, labels, subjects=SUBJECTS)
            federation.audit()
        with Federation.open(path / "federation") as federation:
            federation.order("nobody")
            federation.sync()
            for name in CLIENTS:  # that is still to be sent
                federation.client(name).store.forget(Selection(ids=(f"{name} 3",)))
            shutil.copytree(path / "federation", self.path)
        kept = [(name, 1) for name in CLIENTS]
        rows = [sample(f"{name} {number}", 0) for name, number in kept]
        self.held = {f"{name} {number}" for name, number in kept}
        self.head = solve(Statistics.of(SPEC, [row[0] for row in rows], [row[1] for row in rows]))

    def files(self) -> list[str]:
        """All of them that hold anything."""
        found = (file for file in sorted(self.path.rglob("*")) if file.is_file())
        return [str(file.relative_to(self.path)) for file in found if file.stat().st_size]

    def try_out(self, flip: Flip) -> str:
        """What becomes of one flipped bit: "told" (an audit that differs tells, too) or "harmless";
        AssertionError otherwise.
        """
        return self._tried(flip, self._compare)

    def try_order(self, flip: Flip) -> str:
        """The same of a bit of a client, for orders about each of its subjects in turn."""
        client = Path(flip[0]).parent

        def compare() -> None:
            with ClientStore.open(self._trial / client) as store:
                orders = [(f"{number:032x}", who, 0) for number, who in enumerate(set(SUBJECTS))]
                done, problem = store.carry_out(orders)
                if problem is not None:
                    raise problem
                for order, subject, _ in orders:
                    found = len(done[order].ids) + len(done[order].pending)
                    if found != SUBJECTS.count(subject):
                        raise AssertionError(f"the order about {subject}: {done[order]}")

        return self._tried(flip, compare, client)

    def _tried(self, flip: Flip, compare: Callable[[], None], part: Path = Path()) -> str:
        shutil.rmtree(self._trial, ignore_errors=True)
        shutil.copytree(self.path / part, self._trial / part)
        name, bit = flip
        content = bytearray((self._trial / name).read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        (self._trial / name).write_bytes(content)
        try:
            compare()
        except ExpungeError:
            return "told"
        except Exception as problem:
            raise AssertionError(f"bit {bit} of {name}: {problem!r}") from problem
        return "harmless"

    def _compare(self) -> None:
        with Federation.open(self._trial) as federation:
            clients = {name: federation.client(name) for name in CLIENTS}
            order = federation.order(FORGOTTEN)
            federation.sync()
            audit = federation.audit()
            shown = federation.office.ask("show-order", {"order": order})
            found = {answer["client"]: answer["found"] for answer in shown["answers"]}
            if found != dict.fromkeys(CLIENTS, SUBJECTS.count(FORGOTTEN)):
                raise AssertionError(f"the order has found {found}")
            if audit["result"] == "different":
                raise StoreDamagedError(f"the audit names {audit['different']}")
            if audit["result"] != "equal":
                raise AssertionError(f"the audit: {audit}")
            if federation.published()[0].digest != self.head.digest:
                raise AssertionError("the head is not that of a retrain")
            held = set()
            for client in clients.values():
                opened = client.store.opened(Selection(everything=True))
                held |= {listed.names.id for listed, _ in opened}
                for receipt in client.store.documents("receipt").values():
                    verify(receipt, federation.office.server)
            if held != self.held:
                raise AssertionError(f"the stores hold {sorted(held)}")


def tags(left: Left, name: str = CLIENTS[0]) -> Iterator[Flip]:
    """Every bit of every subject tag in a client's database, wherever it is there."""
    path = left.path / "clients" / name
    with closing(ClientFolder.open_read_only(path)) as folder:
        known = {folder.subject_tag(subject) for subject in SUBJECTS}
    for file in (path / "client.db", path / "client.db-wal"):
        data = file.read_bytes() if file.exists() else b""
        for at in range(len(data)):
            if data[at : at + TAG_BYTES] in known:
                for bit in range(8 * TAG_BYTES):
                    yield str(file.relative_to(left.path)), 8 * at + bit


def frames(left: Left, chance: random.Random) -> Iterator[Flip]:
    """One bit in each frame of each write-ahead log."""
    for name in left.files():
        if name.endswith("-wal"):
            log = (left.path / name).read_bytes()
            (page,) = struct.unpack(">I", log[8:12])
            for start in range(_HEADER, len(log) - page - _FRAME + 1, page + _FRAME):
                yield name, 8 * start + chance.randrange(8 * (page + _FRAME))


def anywhere(left: Left, chance: random.Random, count: int) -> Iterator[Flip]:
    """So many bits of any file, mostly where something is written."""
    names = left.files()
    sizes = [(left.path / name).stat().st_size for name in names]
    for name in chance.choices(names, sizes, k=count):
        content = (left.path / name).read_bytes()
        written = [place for place, byte in enumerate(content) if byte]
        use = written if written and chance.random() < _WRITTEN else range(len(content))
        yield name, 8 * chance.choice(use) + chance.randrange(8)


def main(count: int) -> int:
    setting = f"{seeds.VARIABLE}={seeds.seed()}"
    say(setting)
    folder = Path(tempfile.mkdtemp(prefix="expunge-damage-"))
    broken = 0
    try:
        left = Left(folder)
        parts = {
            "every bit of every subject tag": (left.try_order, tags(left)),
            "one bit in each frame": (left.try_out, frames(left, seeds.chance("frames"))),
            "anywhere": (left.try_out, anywhere(left, seeds.chance("anywhere"), count)),
        }
        for what, (tried, flips) in parts.items():
            seen: Counter[str] = Counter()
            for flip in flips:
                try:
                    seen[tried(flip)] += 1
                except AssertionError as problem:
                    seen["BROKEN"] += 1
                    broken += 1
                    say(f"{problem} ({setting})")
                if seen.total() % _SHOWN == 0:
                    say(f"  {what}: {seen.total():,}")
            shown = ", ".join(f"{became} {number:,}" for became, number in seen.most_common())
            say(f"| {what} | {seen.total():,} | {shown} |")
    finally:
        shutil.rmtree(folder)
    return 1 if broken else 0


if __name__ == "__main__":
    seeds.settle()
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
