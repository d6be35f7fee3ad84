"""``railbus``: subcommands (``commands``), processes of ``railbus up`` (``tree``), clients of edge or log (``client``).

Output for people is formatted in ``show``. ``audit``, ``batch``, ``bench``, ``demo`` and ``host`` have the code of
subcommands.
"""
