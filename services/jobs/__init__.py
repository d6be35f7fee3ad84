"""Batch jobs: their ids, files, lines and results, for the batch service, the edge and the command line."""
