"""The ClientApp, ready to run, and what to add to an existing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from glob import glob
from pathlib import Path
from typing import Any

from expunge._lazy import public_dir
from expunge.client.folder import ClientFolder
from expunge.client.samples import Recompute
from expunge.errors import ExpungeError, InputError, requires_extra
from expunge.transport.flower.client import run_client
from expunge.transport.flower.messages import NodeMessage, ServerMessage
from expunge.transport.flower.records import ACTION, from_records, to_records
from expunge.wire.token import Token

with requires_extra("flower", "Flower"):
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

__all__ = ["client_app", "register"]
__dir__ = public_dir(__name__)

_LONGEST_PROBLEM = 500


def client_app(recompute: Recompute | None = None) -> ClientApp:
    """A ClientApp that answers messages of Expunge and no others.

    Parameters
    ----------
    recompute : callable or None, default None
        Takes a list of sources and returns their features; for stores that keep none.

    Returns
    -------
    flwr.clientapp.ClientApp
        To be named in an app's `pyproject.toml`.

    See Also
    --------
    register : adds the same to an app that does other work as well.

    Examples
    --------
    >>> from expunge.transport.flower.client_app import client_app
    >>> app = client_app()
    >>> type(app).__name__
    'ClientApp'
    """
    app = ClientApp()
    register(app, recompute)
    return app


def register(app: ClientApp, recompute: Recompute | None = None) -> None:
    """Let a ClientApp answer messages of Expunge, beside its other work.

    They are of the type `query.expunge`. The node's config names the client's folder
    (`expunge-client`), and may name a file with a token (`expunge-token`) by which the client is
    enrolled.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
        An app that has no function for `query.expunge` yet.
    recompute : callable or None, default None
        Takes a list of sources and returns their features; for stores that keep none.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from expunge.transport.flower.client_app import register
    >>> app = ClientApp()
    >>> register(app)
    """
    app.query(ACTION)(_handler(recompute))


def _handler(recompute: Recompute | None) -> Callable[[Message, Context], Message]:
    def reply(message: Message, context: Context) -> Message:
        question = ServerMessage.read(from_records(message.content))
        try:
            path, token = (
                client_folder(context.node_config, context.run_config),
                _token(context.node_config),
            )
        except ExpungeError as problem:  # the config is wrong, and nothing in it is personal
            answer = NodeMessage(
                question.turn,
                f"node-{context.node_id}",
                done=True,
                problem=str(problem)[:_LONGEST_PROBLEM],
            )
        else:
            answer = run_client(path, question, token=token, recompute=recompute)
        return Message(to_records(answer.to_parcel()), reply_to=message)

    return reply


def client_folder(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Path:
    """The folder of a node's client: `expunge-client` of the node's config, or its partition's
    share of `expunge-clients`.

    `expunge-clients`, for simulations, is a pattern such as `/data/clients/*`: its folders in the
    order of their names.
    """
    if "expunge-client" in node_config:
        return Path(str(node_config["expunge-client"]))
    pattern, partition = run_config.get("expunge-clients"), node_config.get("partition-id")
    if not isinstance(pattern, str) or not pattern or not isinstance(partition, int):
        raise InputError(
            "this node does not know its client: start the SuperNode with --node-config "
            "'expunge-client=\"PATH\"', or, in a simulation, give the run a pattern of folders, "
            "--run-config 'expunge-clients=\"/data/clients/*\"'"
        )
    folders = sorted(path for path in map(Path, glob(pattern)) if ClientFolder.is_at(path))
    if partition >= len(folders):
        raise InputError(
            f"node {partition} of the simulation has no client: {pattern!r} has only {len(folders)}"
        )
    return folders[partition]


def _token(node_config: Mapping[str, Any]) -> Token | None:
    """The token by which a client is enrolled, if the node's config names a file with one."""
    path = node_config.get("expunge-token")
    if not path:
        return None
    try:
        text = Path(str(path)).read_text(encoding="ascii")
    except (OSError, UnicodeError) as problem:
        raise InputError(f"the token in {path!r} cannot be read: {problem}") from problem
    return Token.from_text(text.strip())
