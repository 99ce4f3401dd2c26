"""Keys and signed envelopes: who said what."""

from expunge.signing.envelope import Envelope
from expunge.signing.keys import PublicKey, SigningKey

__all__ = ["Envelope", "PublicKey", "SigningKey"]
