"""Load a policy, and apply it to prompts and answers.

A policy is a folder, such as ``policies/default``::

    policy.toml        rails, deadlines, limits of delivery, texts for refusals and for replacements
    patterns/*.toml    patterns and word lists, each with examples
    rego/*.rego        admission.rego and findings.rego
    rego/data.json     data for Rego
    nemo/config.yml    configuration of NeMo Guardrails
    golden/*.jsonl     test cases for ``railbus policy test``

Example::

    policy = load(Path("policies/default"))
    policy.admit(AdmissionRequest(...))    # whether the request may be answered
    find_all(policy.automaton, text)       # matches of the patterns
    policy.folded.find(text)               # disguised words, such as "e-x-p-l-o-s-i-v-e"
    policy.rule_on(Finding(...))           # what to do about a match

If Rego gives no usable answer, ``RulingError`` is raised, and the caller must fail closed. Use a ``Policy`` from one
thread at a time.
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
