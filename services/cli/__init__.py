"""``railbus``: subcommands (``commands``), the tree of processes (``tree``), clients of edge and log (``client``).

Output for people is in ``show``; ``demo`` and ``bench`` hold what their subcommands run.
"""
