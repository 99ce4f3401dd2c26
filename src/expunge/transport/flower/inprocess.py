"""A grid in one process: the real ServerApp and ClientApp, and real serialisation of each message,
without a network.

For tests, and for federations on one machine that use Flower's apps without its processes. It can
lose, repeat and hold back messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from expunge.errors import MissingExtraError

try:
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as _problem:
    raise MissingExtraError(
        f"{_problem}. Flower needs it: pip install 'expunge[flower]'"
    ) from _problem

_RUN = 1

Fate = Callable[[str, int, int], str]


def delivered(_: str, __: int, ___: int) -> str:
    """Everything arrives, once."""
    return ""


class InProcessGrid(Grid):  # type: ignore[misc] # flwr is not installed where types are checked
    """Runs a ClientApp for nodes with these configs, as soon as a message is pushed.

    `fate` decides what happens to each message: it is called with "message" or "reply", the node,
    and how many went before. It returns "" (it arrives), "lose", "repeat" (a message reaches the
    node twice, and the second reply counts) or "hold" (a message reaches the node only after the
    next one to it, and its reply is discarded). For what is lost or held back, the server gets the
    error that Flower reports when a message expires.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, Mapping[str, Any]],
        run_config: Mapping[str, Any],
        fate: Fate = delivered,
    ) -> None:
        self._app = app
        self.nodes = {
            node: dict(config) for node, config in nodes.items()
        }  # connected now: they may come and go
        self._config = dict(run_config)
        self._fate = fate
        self._run = Run.create_empty(_RUN)
        self._replies: dict[str, Message] = {}
        self._held: dict[int, list[Message]] = {}
        self.sent = 0  # messages to nodes
        self.received = 0  # replies
        self.bytes = 0  # of both
        _identify()

    def run_server(self, app: ServerApp) -> None:
        """Run a ServerApp on this grid."""
        _identify()
        app(
            grid=self,
            context=Context(_RUN, SUPERLINK_NODE_ID, {}, RecordDict(), dict(self._config)),
        )

    # -- what Grid asks for ------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """There is one run only."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Bring messages to their nodes, whose replies are there at once."""
        identities = []
        for message in messages:
            identity = message.metadata.__dict__["_message_id"] = message.object_id
            self._replies[identity] = self._exchange(self._carried(message))
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each once."""
        return [
            self._replies.pop(identity) for identity in message_ids if identity in self._replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push and pull; never waits; `timeout` is ignored."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    # -- on the way --------------------------------------------------------------------------------

    def _exchange(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        fate = self._fate("message", node, self.sent)
        self.sent += 1
        if fate == "hold":
            self._held.setdefault(node, []).append(message)
        if fate in ("lose", "hold"):
            return _lost(message)
        reply = self._reply(message)
        if fate == "repeat":
            reply = self._reply(message)
        for late in self._held.pop(node, []):
            self._reply(late)
        fate = self._fate("reply", node, self.received)
        self.received += 1
        return reply if fate == "" else _lost(message)

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(_RUN, node, self.nodes[node], RecordDict(), dict(self._config))
        reply = self._app(message, context)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        return self._carried(reply)

    def _carried(self, message: Message) -> Message:
        """The message as it arrives: taken apart into bytes, as over a network, and put together
        again.
        """
        contents = {
            identity: part.deflate() for identity, part in get_all_nested_objects(message).items()
        }
        self.bytes += sum(map(len, contents.values()))
        arrived: Message = inflate_object_from_contents(message.object_id, contents)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return arrived


def _identify() -> None:
    """Messages are written in the name of the party in this process: the server, on run 1."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, SUPERLINK_NODE_ID, 0


def _lost(message: Message) -> Message:
    return Message(
        Error(ErrorCode.MESSAGE_UNAVAILABLE, "the message has expired without a reply"),
        reply_to=message,
    )
