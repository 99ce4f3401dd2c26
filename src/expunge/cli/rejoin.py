"""Taking a client's store to the server that was rebuilt in the place of a lost one."""

from __future__ import annotations

from expunge.client import ClientStore
from expunge.errors import EvidenceError, ProtocolError, SpecMismatchError
from expunge.evidence import KeyChain
from expunge.protocol import speech
from expunge.protocol.carrier import Carrier
from expunge.protocol.token import Token
from expunge.signing import Envelope, PublicKey
from expunge.spec import Spec


def rejoin(store: ClientStore, token: Token, carrier: Carrier, address: str) -> None:
    """Enrol the key of a store at another server, by a token for its name, and pin that server's key.

    The store keeps its samples, its receipts and its numbering; the server gets everything when it asks all clients to send
    again.
    """
    if token.role != "client" or token.name != store.name:
        raise ProtocolError(f"the token is for {token.role} {token.name}, the store is that of client {store.name}")
    spec = federation_spec(token.server, carrier)
    if spec.data_digest != store.spec.data_digest or not spec.grows_from(store.spec):
        raise SpecMismatchError(f"the rebuilt server has another spec than this client: {store.spec.difference(spec)}")
    content = {
        "federation": token.federation,
        "key": store.key.public.text,
        "name": token.name,
        "spec": store.spec.data_digest,
        "token": token.secret,
    }
    envelope, answer = speech.overheard("enrolled", carrier.enrol(speech.said("enrolment", content, store.key)))
    envelope.verify(token.server)
    if (answer["federation"], answer["name"], answer["key"]) != (token.federation, token.name, store.key.public.text):
        raise EvidenceError(f"the server enrolled {answer['name']!r:.80}, not what the token says")
    outstanding = store.composed()
    if outstanding is not None:
        store.abandon(outstanding.sequence, "the server was lost")
    store.move(federation=token.federation, server=token.server, address=address, ca=token.ca)
    store.participation.drop()  # a round at the lost server is over
    store.remember({"peers": ""})  # they are read anew, from the log of the rebuilt server
    if spec != store.spec:
        store.amend(spec)


def federation_spec(server: PublicKey, carrier: Carrier) -> Spec:
    """The spec of a federation, as the server whose key is pinned says it."""
    envelope, content = speech.overheard("federation", carrier.federation())
    chain = KeyChain(server, [Envelope.from_json(value, "rotation") for value in content["rotations"]])
    chain.verify(envelope, lambda said: (said["federation"], said["checkpoint"]["time"]))
    return Spec.from_dict(content["spec"])
