"""A grid in one process: the real ServerApp and ClientApp, and real serialisation of each message,
without a network.

For tests, and for federations on one machine that use Flower's apps without its processes. It can
lose, repeat and hold back messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from expunge._lazy import public_dir
from expunge.errors import requires_extra

with requires_extra("flower", "Flower"):
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.serverapp import Grid, ServerApp
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity

__all__ = ["InProcessGrid"]
__dir__ = public_dir(__name__)

_RUN = 1

Fate = Callable[[str, int, int], str]


def delivered(_: str, __: int, ___: int) -> str:
    """Everything arrives, once."""
    return ""


class InProcessGrid(Grid):  # type: ignore[misc] # flwr is not installed where types are checked
    """A grid whose nodes are in this process: a message is serialised and answered as on Flower's
    own, as soon as it is pushed.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        What every node runs.
    nodes : mapping of int to mapping
        The config of each node, by the node's number.
    run_config : mapping
        The run's config, for server and nodes.
    fate : callable, optional
        What happens to each message; by default it arrives. It is called with "message" or "reply",
        the node, and how many went before. It returns "" (it arrives), "lose", "repeat" (a message
        reaches the node twice, and the second reply counts) or "hold" (a message reaches the node
        only after the next one to it, and its reply is discarded). For what is lost or held back,
        the server gets the error that Flower reports when a message expires.

    Attributes
    ----------
    nodes : dict of int to dict
        The nodes that are connected now; they may come and go.
    sent : int
        Messages to nodes so far.
    received : int
        Replies so far.
    bytes : int
        Bytes of both.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from expunge import Spec
    >>> from expunge.client import ClientStore
    >>> from expunge.federation import Federation
    >>> from expunge.transport.flower.client_app import client_app
    >>> from expunge.transport.flower.inprocess import InProcessGrid
    >>> from expunge.transport.flower.server_app import server_app
    >>> from expunge.transport.local import LocalCarrier
    >>> folder = tempfile.TemporaryDirectory()
    >>> spec = Spec(dim=2, labels=("cat", "dog"))
    >>> with Federation.found(f"{folder.name}/federation", spec) as federation:
    ...     path = federation.client("north").store.path
    >>> with ClientStore.open(path) as store:
    ...     _ = store.add(["a"], [[1.0, 0.5]], ["cat"], now=0.0)
    >>> server = Path(folder.name) / "federation" / "server"
    >>> nodes = {1: {"expunge-client": str(path)}}
    >>> grid = InProcessGrid(client_app(), nodes, {"expunge-server": str(server)})
    >>> grid.run_server(server_app())
    >>> carrier = LocalCarrier.open(server)
    >>> carrier.status()["samples"]
    1
    >>> carrier.close()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, Mapping[str, Any]],
        run_config: Mapping[str, Any],
        fate: Fate = delivered,
    ) -> None:
        self._app = app
        self.nodes = {node: dict(config) for node, config in nodes.items()}
        self._config = dict(run_config)
        self._fate = fate
        self._run = Run.create_empty(_RUN)
        self._replies: dict[str, Message] = {}
        self._held: dict[int, list[Message]] = {}
        self.sent = 0
        self.received = 0
        self.bytes = 0
        _identify()

    def run_server(self, app: ServerApp) -> None:
        """Run a ServerApp on this grid, to its end.

        Parameters
        ----------
        app : flwr.serverapp.ServerApp
            The app; its context has this grid's run config.
        """
        _identify()
        app(
            grid=self,
            context=Context(_RUN, SUPERLINK_NODE_ID, {}, RecordDict(), dict(self._config)),
        )

    # -- what Grid asks for ------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run, as Flower's runtime does; there is one only.

        Parameters
        ----------
        run : flwr.supercore.run.Run
            The run.
        """
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message to a node, as Flower's own grid does.

        Parameters
        ----------
        content : flwr.app.RecordDict
            What it holds.
        message_type : str
            Which function of the ClientApp it is for.
        dst_node_id : int
            The node.
        group_id : str
            A name for messages that belong together.
        ttl : float or None, default None
            Seconds until it expires.

        Returns
        -------
        flwr.app.Message
            The message; nothing is sent.
        """
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """List the nodes that are connected.

        Returns
        -------
        iterable of int
            Their numbers.
        """
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Bring messages to their nodes, whose replies are there at once.

        Parameters
        ----------
        messages : iterable of flwr.app.Message
            The messages.

        Returns
        -------
        iterable of str
            The id of each.
        """
        identities = []
        for message in messages:
            identity = message.metadata.__dict__["_message_id"] = message.object_id
            self._replies[identity] = self._exchange(self._carried(message))
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies to these messages, each once.

        Parameters
        ----------
        message_ids : iterable of str
            The ids that `push_messages` returned.

        Returns
        -------
        iterable of flwr.app.Message
            The replies that are there.
        """
        return [
            self._replies.pop(identity) for identity in message_ids if identity in self._replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies, without waiting.

        Parameters
        ----------
        messages : iterable of flwr.app.Message
            The messages.
        timeout : float or None, default None
            Not used: the replies are there at once.

        Returns
        -------
        iterable of flwr.app.Message
            The replies.
        """
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
