"""Keys and signed envelopes: who said what."""

from expunge.crypto.envelope import Envelope
from expunge.crypto.keys import PublicKey, SigningKey

__all__ = ["Envelope", "PublicKey", "SigningKey"]
