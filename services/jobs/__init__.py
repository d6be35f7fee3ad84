"""Batch jobs: their ids, files, lines and results. The batch service, the edge and the command line use them."""
