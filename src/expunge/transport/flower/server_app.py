"""The ServerApp, ready to run, and what to call in an existing one.

Its loop polls nodes until none has anything to send. Laws: what a node receives comes from the
server's own store, so any later run continues one that was killed; a fault of one node never holds
up the others. The loop sleeps only while there is no reply, in pauses that grow while nothing
happens. (Flower's `send_and_receive` always sleeps 3 s.)
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from expunge._lazy import public_dir
from expunge.errors import ExpungeError, requires_extra
from expunge.server.service import Service
from expunge.server.state import Settings
from expunge.transport.flower.config import RunConfig
from expunge.transport.flower.messages import NodeMessage, ServerMessage
from expunge.transport.flower.records import MESSAGE_TYPE, from_records, to_records
from expunge.transport.flower.server import CallHandler
from expunge.transport.local import LocalCarrier

with requires_extra("flower", "Flower"):
    from flwr.app import Context, Message
    from flwr.serverapp import Grid, ServerApp

__all__ = ["RunSummary", "serve", "server_app"]
__dir__ = public_dir(__name__)

_SHORTEST, _LONGEST = 0.005, 0.25

Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Backoff:
    """Pauses that double from 5 ms to the longest, and start again when something has happened."""

    def __init__(self, sleep: Sleep, longest: float = _LONGEST) -> None:
        self._sleep = sleep
        self._longest = longest
        self._next = _SHORTEST

    def reset(self) -> None:
        """Something has happened: the next pause is a short one."""
        self._next = _SHORTEST

    def wait(self) -> None:
        """Pause."""
        self._sleep(self._next)
        self._next = min(2 * self._next, self._longest)


def connected(grid: Grid, fewest: int, seconds: float, clock: Clock, sleep: Sleep) -> list[int]:
    """The nodes, once there are at least `fewest`; after `seconds`, those that are connected."""
    end, backoff = clock() + seconds, Backoff(sleep)
    while len(nodes := sorted(grid.get_node_ids())) < fewest and clock() < end:
        backoff.wait()
    return nodes


log = logging.getLogger("flwr")

_MOST_TRIES = 5  # conversations with one node that end without its reply, in one poll
_MOST_AT_ONCE = 16  # replies that are pulled, or answered, at the same time
_MOST_HELD = 256 << 20  # bytes of replies that wait to be answered together

_CHANCE = secrets.SystemRandom()

Choose = Callable[[Sequence[int], int], list[int]]


@dataclass
class RunSummary:
    """What a run has done.

    Attributes
    ----------
    done : set of str
        The clients that have nothing more to say.
    problems : dict of str to str
        Why a client could not go on, by the client's name: the reason of a refusal, or the kind of
        an error, of which only the node's own log says more.
    late : set of int
        The nodes that were left behind; the next run continues with them.
    waiting : dict of str to str
        What a client waits for in a round of secure aggregation, by the client's name.
    exchanges : int
        Replies of nodes.

    Examples
    --------
    >>> from expunge.transport.flower.server_app import RunSummary
    >>> summary = RunSummary(done={"north"}, exchanges=2)
    >>> sorted(summary.done), summary.problems
    (['north'], {})
    """

    done: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    waiting: dict[str, str] = field(default_factory=dict)
    exchanges: int = 0


@dataclass(frozen=True)
class _SentMessage:
    node: int
    turn: str
    since: float
    until: float  # when its reply is waited for no longer


@dataclass(frozen=True)
class _HeldMessage:
    node: int
    message: NodeMessage
    until: float  # when as much time has passed since the reply as the reply itself took

    @property
    def size(self) -> int:
        """Bytes of the calls."""
        return sum(
            len(argument)
            for call in self.message.calls
            for argument in call.arguments
            if isinstance(argument, bytes)
        )


class Poll:
    """One poll: a conversation with each of some nodes.

    `heads` are the digests of the heads with which nodes were done; `waiting` says what clients
    wait for, by node.
    """

    def __init__(
        self,
        grid: Grid,
        handler: CallHandler,
        config: RunConfig,
        summary: RunSummary,
        clock: Callable[[], float],
    ) -> None:
        self._grid = grid
        self._handler = handler
        self._config = config
        self._summary = summary
        self._clock = clock
        self._waiting: dict[str, _SentMessage] = {}  # by the message that waits for a reply
        self._held: list[_HeldMessage] = []  # what nodes have said, to be answered together
        self._absent: dict[
            int, float
        ] = {}  # nodes that are not connected, and how long they are waited for
        self._tries: dict[int, int] = {}
        self.heads: dict[int, str] = {}
        self.waiting: dict[int, str] = {}

    def run(self, nodes: Iterable[int], end: float, sleep: Callable[[float], None]) -> None:
        """Talk to these nodes until all are done, or time is up."""
        backoff = Backoff(sleep)
        with ThreadPoolExecutor(_MOST_AT_ONCE, "calls") as pool:
            self._push((node, self._handler.opening()) for node in nodes)
            while (self._waiting or self._absent or self._held) and self._clock() < end:
                before = self._summary.exchanges
                silent = [*self._overdue(), *self._returned(), *self._pull()]
                held = self._due()
                if before == self._summary.exchanges and not silent and not held:
                    backoff.wait()
                    continue
                backoff.reset()
                answers = self._handler.answer_all([item.message for item in held], pool.map)
                self._push(zip([item.node for item in held], answers, strict=True))
                self._push(
                    (node, self._handler.opening()) for node in silent if self._is_there(node)
                )
        late = (
            {sent.node for sent in self._waiting.values()}
            | {item.node for item in self._held}
            | set(self._absent)
        )
        for node in sorted(late):
            self._leave(node, "the deadline has come")

    def _pull(self) -> list[int]:
        """Take in the replies that are there, as far as memory allows; the nodes that did not
        reply.
        """
        waiting = list(self._waiting)
        silent: list[int] = []
        for start in range(0, len(waiting), _MOST_AT_ONCE):
            if self._is_full():
                break
            replies = self._grid.pull_messages(waiting[start : start + _MOST_AT_ONCE])
            silent += [node for node in map(self._take_reply, replies) if node is not None]
        return silent

    def _is_full(self) -> bool:
        return sum(held.size for held in self._held) > _MOST_HELD

    def _due(self) -> list[_HeldMessage]:
        """What is to be answered now: all that nodes have said, once everybody has, or once nobody
        has replied for as long as the replies took.

        Answered together, requests share a round, and no client gets an outdated head: it would be
        polled again. Nodes that work one after another, as in a simulation, reply one after
        another.
        """
        now = self._clock()
        if (
            self._waiting
            and any(message.until >= now for message in self._held)
            and not self._is_full()
        ):
            return []
        held, self._held = self._held, []
        return held

    def _push(self, messages: Iterable[tuple[int, ServerMessage]]) -> None:
        for node, content in messages:
            message = Message(
                to_records(content.to_parcel()), node, MESSAGE_TYPE, ttl=self._config.reply_seconds
            )
            for identity in self._grid.push_messages([message]):
                if identity:
                    now = self._clock()
                    self._waiting[identity] = _SentMessage(
                        node, content.turn, now, now + self._config.reply_seconds
                    )
                else:
                    self._leave(node, "the message to it could not be sent")

    def _overdue(self) -> list[int]:
        """Nodes whose reply has not come in time; their messages are given up."""
        now = self._clock()
        overdue = [identity for identity, sent in self._waiting.items() if sent.until <= now]
        return [self._waiting.pop(identity).node for identity in overdue]

    def _take_reply(self, reply: Message) -> int | None:
        """Take a reply in. If it is none, its node."""
        sent = self._waiting.pop(reply.metadata.reply_to_message_id, None)
        if sent is None:
            return None
        if reply.has_error():
            log.warning("Expunge: node %s did not reply: %s", sent.node, reply.error.reason)
            return sent.node
        self._summary.exchanges += 1
        try:
            message = NodeMessage.read(from_records(reply.content))
        except ExpungeError as problem:
            self._summary.problems[f"node {sent.node}"] = str(problem)
            log.warning("Expunge: node %s says what cannot be understood: %s", sent.node, problem)
            return None
        if message.turn != sent.turn:
            return sent.node
        if not self._is_done(sent.node, message):
            now = self._clock()
            self._held.append(_HeldMessage(sent.node, message, now + (now - sent.since)))
        return None

    def _is_done(self, node: int, message: NodeMessage) -> bool:
        if not message.done:
            return False
        self._summary.late.discard(node)
        if message.problem:
            self._summary.problems[message.client] = message.problem
            log.warning(
                "Expunge: the client %s could not go on: %s", message.client, message.problem
            )
        else:
            self._summary.done.add(message.client)
            self._summary.problems.pop(message.client, None)
            self._summary.waiting.pop(message.client, None)
            self.heads[node] = message.head
        if message.waiting:
            self._summary.waiting[message.client] = self.waiting[node] = message.waiting
        return True

    def _is_there(self, node: int) -> bool:
        """Whether to start over, now, with a node that did not reply.

        One that is not connected is waited for.
        """
        if self._tries.get(node, 0) == _MOST_TRIES:
            self._leave(node, "it does not reply")
            return False
        if node not in set(self._grid.get_node_ids()):
            self._absent.setdefault(node, self._clock() + self._config.reply_seconds)
            return False
        self._tries[node] = self._tries.get(node, 0) + 1
        return True

    def _returned(self) -> list[int]:
        """Nodes that are connected again; those that have been away for too long are left
        behind.
        """
        if not self._absent:
            return []
        connected, now = set(self._grid.get_node_ids()), self._clock()
        returned = [node for node in self._absent if node in connected]
        gone = [
            node for node, until in self._absent.items() if until <= now and node not in connected
        ]
        for node in (*returned, *gone):
            del self._absent[node]
        for node in gone:
            self._leave(node, "it is not connected")
        return returned

    def _leave(self, node: int, why: str) -> None:
        self._summary.late.add(node)
        log.warning(
            "Expunge: node %s is left behind: %s. Nothing is lost; its client goes on with the "
            "next run",
            node,
            why,
        )


def poll_nodes(
    grid: Grid,
    handler: CallHandler,
    config: RunConfig,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    choose: Choose = _CHANCE.sample,
) -> RunSummary:
    """Poll nodes as the config says, until all are idle and have the newest head, or without end;
    what was seen.
    """
    summary = RunSummary()
    while True:
        nodes = _connected(grid, config, clock, sleep)
        chosen = choose(nodes, max(1, round(config.fraction * len(nodes)))) if nodes else []
        end = clock() + config.deadline_seconds
        patience = _Patience(config.round_seconds, clock, sleep)
        while chosen and clock() < end:
            poll = Poll(grid, handler, config, summary, clock)
            poll.run(chosen, end, sleep)
            # Those that were done early do not know what came of the others' requests. If there is
            # another poll, that tells them.
            stale = {
                node
                for node, head in poll.heads.items()
                if config.until == "idle" and not handler.is_newest(head)
            }
            waiting = set(poll.waiting) if patience.lasts(poll.waiting) else set()
            chosen = sorted(stale | waiting)
        if config.until == "idle":
            return summary
        sleep(config.poll_seconds)


class _Patience:
    """Asks clients that wait for others again, more and more slowly, until nothing has changed for
    some time.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: dict[int, str] = {}
        self._since = clock()
        self._backoff = Backoff(sleep)

    def lasts(self, waiting: dict[int, str]) -> bool:
        """Whether to ask again; pauses if nothing has changed."""
        if not waiting:
            return False
        if waiting != self._last:
            self._last, self._since = waiting, self._clock()
            self._backoff.reset()
            return True
        if self._clock() - self._since >= self._seconds:
            return False
        self._backoff.wait()
        return True


def _connected(
    grid: Grid, config: RunConfig, clock: Callable[[], float], sleep: Callable[[float], None]
) -> list[int]:
    """The nodes, as soon as there are enough of them; none if there are not before the deadline."""
    nodes = connected(grid, config.fewest_nodes, config.deadline_seconds, clock, sleep)
    if len(nodes) >= config.fewest_nodes:
        return nodes
    log.warning(
        "Expunge: %d nodes are connected, %d are needed: nothing is done",
        len(nodes),
        config.fewest_nodes,
    )
    return []


_LOCK_PATIENCE = 60.0  # seconds that a run which was killed may still hold the server's folder


def server_app(settings: Settings | None = None) -> ServerApp:
    """A ServerApp that serves the federation of its run's config and does nothing else.

    Parameters
    ----------
    settings : Settings or None, default None
        The operator's choices; by default those of `expunge.server.state.Settings`.

    Returns
    -------
    flwr.serverapp.ServerApp
        To be named in an app's `pyproject.toml`.

    See Also
    --------
    serve : does the same within the main function of an app that does other work as well.

    Examples
    --------
    >>> from expunge.transport.flower.server_app import server_app
    >>> app = server_app()
    >>> type(app).__name__
    'ServerApp'
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        serve(grid, context, settings=settings)

    app.main()(main)
    return app


def serve(grid: Grid, context: Context, *, settings: Settings | None = None) -> RunSummary:
    """Poll the nodes as the run's config says, and apply each of their requests once.

    For the main function of any ServerApp. The server's folder is open meanwhile; nothing of what
    was applied is lost if the run is killed, and the next run continues.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        The way to the nodes, as the main function gets it.
    context : flwr.app.Context
        The run, as the main function gets it. Its config names the server's folder
        (`expunge-server`) and may have the other settings of the guide.
    settings : Settings or None, default None
        The operator's choices; by default those of `expunge.server.state.Settings`.

    Returns
    -------
    RunSummary
        The clients that are done, and those that are not.

    Raises
    ------
    InputError
        The run's config has no `expunge-server`, or a setting that cannot be.
    StoreBusyError
        Another process has the server's folder open, for more than a minute.
    StoreError
        There is no server in the folder, or it is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from flwr.serverapp import ServerApp
    >>> from expunge import Spec
    >>> from expunge.federation import Federation
    >>> from expunge.transport.flower.client_app import client_app
    >>> from expunge.transport.flower.inprocess import InProcessGrid
    >>> from expunge.transport.flower.server_app import serve
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"))
    >>> with Federation.found(f"{folder.name}/federation", spec) as federation:
    ...     path = federation.client("north").store.path
    >>> app = ServerApp()
    >>> @app.main()
    ... def main(grid, context):
    ...     print(sorted(serve(grid, context).done))
    >>> config = {"expunge-server": f"{folder.name}/federation/server"}
    >>> grid = InProcessGrid(client_app(), {1: {"expunge-client": str(path)}}, config)
    >>> grid.run_server(app)
    ['north']
    >>> folder.cleanup()
    """
    config = RunConfig.of(context.run_config)
    began = time.monotonic()
    carrier = LocalCarrier.open(config.server, settings=settings, timeout=_LOCK_PATIENCE)
    try:
        before = _applied(carrier)
        handler = CallHandler(
            carrier, lambda what, problem: log.error("Expunge: %s", what, exc_info=problem)
        )
        summary = poll_nodes(grid, handler, config)
        log.info(
            "Expunge: %d samples, head %s; %d requests applied, %d clients seen, %d with problems, "
            "%d waiting for others, %d nodes late; %d exchanges in %.2f s",
            carrier.status()["samples"],
            carrier.head_digest() or "none",
            _applied(carrier) - before,
            len(summary.done | set(summary.problems)),
            len(summary.problems),
            len(summary.waiting),
            len(summary.late),
            summary.exchanges,
            time.monotonic() - began,
        )
    finally:
        carrier.close()
    return summary


def _applied(service: Service) -> int:
    """How many requests of clients have been applied, by messages of their own or by rounds of
    secure aggregation.
    """
    actors = service.state.storage.actors.all()
    return sum(actor.sequence for actor in actors if actor.role == "client")
