"""Batch jobs: their ids, input lines, states and results. The batch service, the edge and the command line use them."""
