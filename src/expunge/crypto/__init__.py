"""Ed25519 keys and signed envelopes, canonical JSON, and vaults whose keys can be destroyed."""

from expunge._lazy import public_dir
from expunge.crypto.envelope import Envelope
from expunge.crypto.keys import PublicKey, SigningKey

__all__ = ["Envelope", "PublicKey", "SigningKey"]
__dir__ = public_dir(__name__)
