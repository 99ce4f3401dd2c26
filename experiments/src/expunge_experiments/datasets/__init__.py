"""What to learn from: features of real data, and loaders for the standard files of the paper's data
sets.
"""
