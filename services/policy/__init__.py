"""Policies as data: loading, versions, matching, Rego, hot reload. A library layer like ``services.bus``.

A policy is a folder (``policies/default``, ``policies/strict``)::

    policy.toml        rails, deadlines, windows, delivery bounds, refusal and replacement texts (source/document.py)
    patterns/*.toml    bounded patterns and word lists, each with examples (source/document.py)
    rego/*.rego        admission.rego, findings.rego; with rego/data.json the root of an OPA bundle
    nemo/config.yml    NeMo Guardrails (IORails engine)
    golden/*.jsonl     answers that the policy must give

Use::

    policy = load(Path("policies/default"))       # BrokenPolicy.faults: file, line, message
    policy.version                                # for Verdict.policy_version and Recall.policy_version
    policy.admit(AdmissionRequest(...))           # -> Admission(allow, reasons, delivery, egress)
    policy.rule_on(Finding(tenant=, side="input", category=, rule=, tier=0))  # -> Ruling(action, egress, replacement)
    policy.refusal(admission.reasons[0])          # the text for a denied user
    policy.tighten(request.delivery, admission)   # for Verdict.delivery
    find_all(policy.automaton, text)              # -> [Match(rule, start, end)]: secrets, PII, blocked words
    policy.folded.find(text)                      # -> [FoundSpan(...)]: disguised words ("p1pe b-o-m-b")
    reloader = PolicyReloader(path, prepare)      # prepare(policy) builds engines first; BrokenPolicy rejects it
    reloader.current; await reloader.watch()      # take `current` once per request and keep it

``engines`` has Rego, its decision log, NeMo and Presidio. NeMo and Presidio are heavy, so import them only where they
run. If Rego cannot answer, ``RulingError`` is raised. The caller must fail closed and never treat it as "allowed".
Use a ``Policy`` from one thread at a time.
"""

from services.policy.errors import BrokenPolicy, PolicyError, PolicyFault, RulingError
from services.policy.load import build, load
from services.policy.matching import Automaton, Match, Rule, Scanner, find_all
from services.policy.policy import Policy
from services.policy.reloader import PolicyReloader
from services.policy.rulings import (
    ADMISSION,
    FINDING,
    Admission,
    AdmissionRequest,
    Finding,
    FoundSpan,
    Ruling,
    read_admission,
    read_ruling,
)
from services.policy.source.document import PolicyDocument, RailSpec
from services.policy.source.files import DEFAULT_POLICY

__all__ = [
    "ADMISSION",
    "DEFAULT_POLICY",
    "FINDING",
    "Admission",
    "AdmissionRequest",
    "Automaton",
    "BrokenPolicy",
    "Finding",
    "FoundSpan",
    "Match",
    "Policy",
    "PolicyDocument",
    "PolicyError",
    "PolicyFault",
    "PolicyReloader",
    "RailSpec",
    "Rule",
    "Ruling",
    "RulingError",
    "Scanner",
    "build",
    "find_all",
    "load",
    "read_admission",
    "read_ruling",
]
