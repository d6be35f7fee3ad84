"""Run the test cases of a policy: ``railbus policy test``.

Each line of ``golden/*.jsonl`` is a case. The keys of a case tell which part of the policy it tests.

``admit`` is an input of ``admission.rego``, and ``finding`` an input of ``findings.rego``. Most fields of an input have
default values. Only the fields in ``expect`` are compared with Rego's answer::

    {"name": ..., "admit": {"tenant": "acme", "max_tokens": 9000}, "expect": {"allow": false, "reasons": ["tokens"]}}
    {"name": ..., "finding": {"tenant": "acme", "side": "output", "category": "email"}, "expect": {"action": "redact"}}

``input`` is the text of a prompt, and ``output`` the text of an answer. ``expect`` lists all matches of patterns: the
rule, the action and the matched text::

    {"name": ..., "output": "Write to a@b.io", "tenant": "acme", "expect": [["pii/email", "redact", "a@b.io"]]}

``broken`` is the name of an input rail. ``expect`` is the value of ``on_broken`` for this rail::

    {"name": ..., "broken": "jailbreak", "expect": "deny"}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from services.policy.errors import BrokenPolicy, PolicyError, PolicyFault
from services.policy.matching import Match, find_all
from services.policy.policy import Policy
from services.policy.rulings import ADMISSION, FINDING, AdmissionRequest, Finding, Side

_ADMIT: Final = {
    "tenant": "local",
    "model": "default",
    "lane": "interactive",
    "attempt": 1,
    "prompt_chars": 100,
    "max_tokens": 256,
    "mode": "optimistic",
    "egress": "allowed",
}
_SIDES: Final[tuple[Side, ...]] = ("input", "output")
_FINDING: Final = {"tenant": "local", "rule": "golden", "tier": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    path: str
    line: int
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.body.get("name", f"line {self.line}"))


def cases(policy: Policy) -> list[GoldenCase]:
    """Return all test cases of a policy.

    Raises:
        BrokenPolicy: A line of a file of test cases is not a JSON object.
    """
    found = []
    for path in sorted(policy.files):
        if path.startswith("golden/") and path.endswith(".jsonl"):
            for number, line in enumerate(policy.files[path].splitlines(), 1):
                if line.strip():
                    found.append(GoldenCase(path=path, line=number, body=parse_case(path, number, line)))
    return found


def parse_case(path: str, line: int, text: bytes) -> Mapping[str, Any]:
    """Parse a line of a file of test cases.

    Raises:
        BrokenPolicy: The line is not a JSON object.
    """
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BrokenPolicy([PolicyFault(path, line, f"is not JSON: {error}")]) from None
    except RecursionError:
        raise BrokenPolicy([PolicyFault(path, line, "is nested too deeply; make its structure flatter")]) from None
    if not isinstance(body, dict):
        raise BrokenPolicy([PolicyFault(path, line, "must be a JSON object")])
    return body


def run_case(policy: Policy, case: GoldenCase) -> PolicyFault | None:
    """Run a test case. Return None if the case passes, otherwise what is wrong."""
    expected = case.body.get("expect")
    try:
        answer = _answer(policy, case.body)
        if isinstance(expected, dict) and isinstance(answer, dict):
            answer = {key: answer.get(key) for key in expected}
        if answer == expected:
            return None
        message = f"expected {_shown(expected)}, the answer is {_shown(answer)}"
    except (PolicyError, TypeError, RecursionError) as error:
        message = str(error)
    return PolicyFault(case.path, case.line, f"{case.name}: {message}")


def rego_questions(policy: Policy, case: GoldenCase) -> list[tuple[str, AdmissionRequest | Finding]]:
    """Return a test case's questions for Rego. A question is the name of a Rego rule, and the rule's input."""
    body = case.body
    if "admit" in body:
        return [(ADMISSION, _admission_request(body))]
    if "finding" in body:
        return [(FINDING, _finding(body))]
    tenant = str(body.get("tenant", "local"))
    return [
        (FINDING, _finding_of(match, tenant, side))
        for side in _SIDES
        if side in body
        for match in find_all(policy.automaton, str(body[side]))
    ]


def _answer(policy: Policy, body: Mapping[str, Any]) -> Any:
    if "admit" in body:
        return _plain(policy.admit(_admission_request(body)))
    if "finding" in body:
        return _plain(policy.rule_on(_finding(body)))
    if "broken" in body:
        return policy.on_broken(str(body["broken"]))
    for side in _SIDES:
        if side in body:
            return _found(policy, str(body[side]), str(body.get("tenant", "local")), side)
    raise TypeError("needs one of 'admit', 'finding', 'broken', 'input', 'output'")


def _found(policy: Policy, text: str, tenant: str, side: Side) -> list[list[str]]:
    found = []
    for match in find_all(policy.automaton, text):
        ruling = policy.rule_on(_finding_of(match, tenant, side))
        found.append([match.rule.name, ruling.action, text[match.start : match.end]])
    return found


def _admission_request(body: Mapping[str, Any]) -> AdmissionRequest:
    return AdmissionRequest(**{**_ADMIT, **body["admit"]})


def _finding(body: Mapping[str, Any]) -> Finding:
    finding = Finding(**{**_FINDING, **body["finding"]})
    if finding.side not in _SIDES:
        raise TypeError(f"side is {finding.side!r}; use 'input' or 'output'")
    return finding


def _finding_of(match: Match, tenant: str, side: Side) -> Finding:
    return Finding(tenant=tenant, side=side, category=match.rule.category, rule=match.rule.name)


def _plain(answer: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
