"""The paper's experiments: data, partitions, every compared system, tables and figures.

Uses public names of Expunge only; only the command line uses it.
"""
