"""What all tests share: one Hypothesis profile, with failures that can be replayed."""

from __future__ import annotations

from hypothesis import settings

# No deadline, because the machine is shared; the blob replays a failure anywhere.
settings.register_profile("expunge", deadline=None, derandomize=False, print_blob=True, max_examples=50)
settings.load_profile("expunge")
