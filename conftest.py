"""What all tests share: one Hypothesis profile, with failures that can be replayed."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline, because the machine is shared; the blob replays a failure anywhere.
settings.register_profile("expunge", deadline=None, print_blob=True, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("expunge")
