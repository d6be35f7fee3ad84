"""Policies as data: loading, versions, matching, Rego, hot reload. A library layer like ``services.bus``.

A policy is a folder (``policies/default``, ``policies/strict``)::

    policy.toml        rails, deadlines, windows, delivery bounds, refusal and replacement texts   (document.py)
    patterns/*.toml    bounded patterns and word lists, each with its examples                     (document.py)
    rego/*.rego        admission.rego, findings.rego; rego/data.json is their data: an OPA bundle's root
    nemo/config.yml    NeMo Guardrails (IORails engine)
    golden/*.jsonl     what this policy must answer

Use::

    policy = load(Path("policies/default"))        # BrokenPolicy.faults: file, line, message
    policy.version                                 # stamp it on Verdict.policy_version and Recall.policy_version
    policy.document.rails.rail, .deadline_ms, .on_broken
    policy.admit(Admittance(...)) -> Admission(allow, reasons, delivery, egress)
    policy.rule_on(Finding(tenant=, side="input", category=, rule=, tier=0)) -> Ruling(action, egress, replacement)
    policy.refusal(admission.reasons[0])           # the text a denied user is shown
    policy.tighten(request.delivery, admission) -> Delivery      # for Verdict.delivery
    find_all(policy.machine, text) -> [Match(rule, start, end)]  # secrets, PII, blocklists; code points
    policy.folded.find(text)                       # words in disguise ("p1pe b-o-m-b")
    services.policy.presidio: Presidio().find(text)   # numbers by country and checksum; import it where texts are read
    services.policy.nemo: add_rail(...), build_engine(policy, "input", custom)   # IORails; import it where rails run
    policy.rego.modules, policy.rego.data          # what an OPA server is given; ADMISSION, FINDING are its paths
    read_admission(answer), read_ruling(answer, "input")  # checks an OPA server's answer like the in-process one

    keeper = Keeper(path, prepare)                 # prepare(policy) builds engines first; BrokenPolicy refuses
    keeper.current; await keeper.watch()           # hot reload; take `current` once per request and keep it

Every question that Rego cannot answer raises ``RulingError``: fail closed, never read it as "allowed". A
``Policy`` may be used from one thread at a time.
"""

from services.policy.delivery import clamp
from services.policy.document import PolicyDocument, RailSpec
from services.policy.errors import BrokenPolicy, Fault, PolicyError, RulingError
from services.policy.files import DEFAULT_POLICY
from services.policy.keeper import Keeper
from services.policy.load import build, load
from services.policy.matching import Machine, Match, Rule, Scanner, find_all
from services.policy.policy import Policy
from services.policy.rulings import (
    ADMISSION,
    FINDING,
    Admission,
    Admittance,
    Finding,
    Ruling,
    read_admission,
    read_ruling,
)

__all__ = [
    "ADMISSION",
    "DEFAULT_POLICY",
    "FINDING",
    "Admission",
    "Admittance",
    "BrokenPolicy",
    "Fault",
    "Finding",
    "Keeper",
    "Machine",
    "Match",
    "Policy",
    "PolicyDocument",
    "PolicyError",
    "RailSpec",
    "Rule",
    "Ruling",
    "RulingError",
    "Scanner",
    "build",
    "clamp",
    "find_all",
    "load",
    "read_admission",
    "read_ruling",
]
