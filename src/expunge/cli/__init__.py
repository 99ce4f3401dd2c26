"""The command line `expunge`: one file for each group of commands. The only room that prints."""
