"""The safety service. It checks answers while they stream, and writes recalls and clearances to the stream log.

There are three tiers of checks:

- Tier 0 searches all text for the policy's patterns (``services.policy.matching``).
- Tier 1 is NeMo Guardrails' output rails (``checks/nemo.py``).
- Tier 2 is the policy's classifiers (``checks/classifiers.py``).

Tiers 1 and 2 check pieces of the text, which are called windows. The policy's Rego rules decide what a finding leads
to. A clearance says that the text passed tiers 0 and 1. In gated delivery, the text has also passed tier 2. The final
clearance of a run always includes tier 2.

The decisions are made without I/O: ``core.py`` has the partitions, ``partition.py`` the requests of one partition,
``decide/request.py`` the runs of one request, and ``decide/run.py`` the checks of one run.
"""
