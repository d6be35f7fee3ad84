"""The safety service. It checks answers while they stream, and writes recalls and clearances to the stream log.

    core.py -> partition.py -> decide/request.py -> decide/run.py    the decisions: partition, request, one run's text
    service.py, checks/executor.py                                   the process: the log, the checks' time limits
    checks/nemo.py, checks/classifiers.py                            the checks of tier 1 and tier 2

Tier 0 reads every character with the policy's patterns (``services.policy.matching``). Tier 1 is NeMo Guardrails'
output rails, tier 2 the policy's classifiers. Both tiers check windows that end at absolute character offsets. Rego
decides what a finding means. A clearance says that the text passed tiers 0 and 1, or in gated delivery all tiers. The
final clearance always says that the text passed all tiers.
"""
