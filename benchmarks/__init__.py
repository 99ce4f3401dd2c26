"""Speed, measured as ratios within one run against what a user would use instead."""
