"""The experiment `burst`: 200 single deletions, and the same samples added back."""
