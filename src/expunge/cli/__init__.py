"""The command line `expunge`: one file for each group of commands. The only layer that prints."""
