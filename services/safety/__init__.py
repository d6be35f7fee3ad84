"""Checks answers while they stream, and says on the stream log what must not stand and how far the text is cleared.

    core.py -> shard.py -> case.py -> run.py     the decisions: partition, request, one execution's text
    service.py, checker.py                       the shell: the log, the checks' deadlines and shares
    nemo.py, classifiers.py                      what answers the looks of tier 1 and tier 2

Tier 0 reads every character with the policy's patterns (``services.policy.matching``). Tier 1 is NeMo Guardrails'
output rails, tier 2 the policy's classifiers; both look at windows that end at absolute character offsets. Rego decides
what a finding means. A clearance says that tiers 0 and 1 passed (in gated delivery, all tiers); the final one, that all
did.
"""
