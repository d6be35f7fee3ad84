"""Find the faults of a policy without running requests: ``railbus policy lint``."""

from pathlib import Path
from typing import Final

from schemas.requests import Deadlines
from services.policy.errors import BrokenPolicy, PolicyFault, RulingError
from services.policy.golden import parse_case
from services.policy.load import build, rule_of
from services.policy.matching import Automaton, find_all
from services.policy.policy import Policy
from services.policy.rulings import AdmissionRequest, Finding
from services.policy.source.document import PatternFile, PatternSpec, RailKind, pattern_rail
from services.policy.source.files import Files, read_files
from services.policy.source.nemo_config import has_folded_flow
from services.policy.source.toml import line_of, read_toml

_PROBE: Final = AdmissionRequest(
    tenant="no-such-tenant",
    model="no-such-model",
    lane="interactive",
    attempt=1,
    prompt_chars=1,
    max_tokens=1,
    mode="optimistic",
    egress="allowed",
)


def lint(root: Path) -> tuple[PolicyFault, ...]:
    """Return all faults of the policy in this folder, sorted by file and line."""
    try:
        files = read_files(root)
        policy = build(files)
    except BrokenPolicy as broken:
        return broken.faults
    faults = [*_deadline_faults(policy), *_pattern_faults(files), *admission_faults(policy), *finding_faults(policy)]
    faults += [*_nemo_faults(files), *_golden_faults(files)]
    return tuple(sorted(faults))


def unsearched_patterns(policy: Policy) -> dict[RailKind, list[str]]:
    """Return the patterns that prompts are not searched for, by the input rail that the policy lacks."""
    rails = {rail.name for rail in policy.document.rails.rail}
    found: dict[RailKind, list[str]] = {}
    for rule in policy.rules:
        if (rail := pattern_rail(rule.name)) not in rails:
            found.setdefault(rail, []).append(rule.name)
    return found


def unsearched_answers(policy: Policy) -> list[str]:
    """Return the folded patterns whose disguised words are not found in answers, because the NeMo flow is missing."""
    if has_folded_flow(policy.files):
        return []
    names = [name for name in policy.files if name.startswith("patterns/") and name.endswith(".toml")]
    patterns = [spec for name in names for spec in read_toml(name, policy.files[name], PatternFile).pattern]
    return sorted(spec.name for spec in patterns if spec.folded)


def _deadline_faults(policy: Policy) -> list[PolicyFault]:
    text = policy.files["policy.toml"].decode()
    rails = policy.document.rails
    due_ms = Deadlines().verdict_ms
    places = [("$.rails.deadline_ms", rails.deadline_ms)]
    places += [(f"$.rails.rail[{n}].deadline_ms", rail.deadline_ms or 0) for n, rail in enumerate(rails.rail)]
    return [
        PolicyFault(
            "policy.toml", line_of(text, where), f"{ms} ms is not before a request's verdict is due ({due_ms} ms)"
        )
        for where, ms in places
        if ms >= due_ms
    ]


def _pattern_faults(files: Files) -> list[PolicyFault]:
    faults: list[PolicyFault] = []
    for name in files:
        if name.startswith("patterns/") and name.endswith(".toml"):
            text = files[name].decode()
            for index, spec in enumerate(read_toml(name, files[name], PatternFile).pattern):
                where = f"$.pattern[{index}]"
                faults.extend(
                    PolicyFault(name, line_of(text, f"{where}.{field}"), f"{spec.name}: {message}")
                    for field, message in _example_faults(spec)
                )
    return faults


def _example_faults(spec: PatternSpec) -> list[tuple[str, str]]:
    automaton = Automaton([rule_of(spec)])
    faults: list[tuple[str, str]] = []
    for number, example in enumerate(spec.examples, 1):
        if [(match.start, match.end) for match in find_all(automaton, example)] != [(0, len(example))]:
            faults.append(("examples", f"example {number} is not matched as a whole"))
    for number, example in enumerate(spec.counterexamples, 1):
        if find_all(automaton, example):
            faults.append(("counterexamples", f"counterexample {number} is matched"))
    return faults


def admission_faults(policy: Policy) -> list[PolicyFault]:
    try:
        policy.admit(_PROBE)
    except RulingError as error:
        return [PolicyFault("rego/admission.rego", 0, f"for an unknown tenant: {error}")]
    return []


def finding_faults(policy: Policy) -> list[PolicyFault]:
    faults: list[PolicyFault] = []
    # Besides the categories of the patterns: two of the safety service, and an unknown one.
    categories = {rule.category for rule in policy.rules} | {"no_such_category", "unchecked", "flood"}
    for category in sorted(categories):
        for side in ("input", "output"):
            finding = Finding(tenant="no-such-tenant", side=side, category=category, rule="lint")
            try:
                policy.rule_on(finding)
            except RulingError as error:
                faults.append(PolicyFault("rego/findings.rego", 0, f"category {category!r} in {side}: {error}"))
    return faults


def _nemo_faults(files: Files) -> list[PolicyFault]:
    if "nemo/config.yml" in files:
        return []
    return [PolicyFault("nemo/config.yml", 0, "is missing; without it no NeMo rail runs")]


def _golden_faults(files: Files) -> list[PolicyFault]:
    faults: list[PolicyFault] = []
    for name in files:
        if name.startswith("golden/") and name.endswith(".jsonl"):
            for number, line in enumerate(files[name].splitlines(), 1):
                try:
                    parse_case(name, number, line.strip() or b"{}")
                except BrokenPolicy as broken:
                    faults += broken.faults
    return faults
