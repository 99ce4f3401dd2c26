"""The ridge head: what parties agree on, samples as integers, their exact statistics, the head."""
