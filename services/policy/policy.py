"""A policy as it is used: immutable, with its version."""

from dataclasses import asdict, dataclass
from typing import Final

from schemas.requests import Delivery
from services.policy import delivery
from services.policy.document import OnBroken, PolicyDocument
from services.policy.files import Files
from services.policy.folding import FoldedWords
from services.policy.matching import Machine, Rule
from services.policy.rego import Rego
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

ENTRY_POINTS: Final = (ADMISSION, FINDING)
_MAX_RULINGS_KEPT: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """Everything an owner's files say. Load one with ``services.policy.load``.

    Attributes:
        version: Hash of all files' content; stamped on every verdict and recall.
        document: ``policy.toml``.
        rules: The patterns of ``patterns/*.toml``, sorted by name.
        machine: The same, ready to match; not for use from two threads at once.
        folded: The word lists that are also looked for in disguise.
        rego: ``rego/*.rego`` with ``rego/data.json``.
        files: Relative path -> content, as hashed; the NeMo configuration is read from here.
    """

    version: str
    document: PolicyDocument
    rules: tuple[Rule, ...]
    machine: Machine
    folded: FoldedWords
    rego: Rego
    files: Files
    _rulings: dict[Finding, Ruling]

    def admit(self, asked: Admittance) -> Admission:
        """What ``admission.rego`` says.

        Raises:
            RulingError: No usable answer; fail closed.
        """
        return read_admission(self.rego.ask(ADMISSION, asdict(asked)))

    def rule_on(self, finding: Finding) -> Ruling:
        """What ``findings.rego`` says; the answer depends on nothing but the finding and is kept.

        Raises:
            RulingError: No usable answer; fail closed.
        """
        ruling = self._rulings.get(finding)
        if ruling is None:
            if len(self._rulings) >= _MAX_RULINGS_KEPT:
                self._rulings.clear()
            ruling = self._rulings[finding] = read_ruling(self.rego.ask(FINDING, asdict(finding)), finding.side)
        return ruling

    def on_broken(self, rail: str) -> OnBroken:
        """What it means when this rail broke or ran out of time; a rail that policy does not name takes the default."""
        rails = self.document.rails
        own = next((spec.on_broken for spec in rails.rail if spec.name == rail), None)
        return own or rails.on_broken

    def refusal(self, reason: str) -> str:
        """What a denied user is shown."""
        texts = self.document.refusals
        return texts.get(reason, texts["default"])

    def replacement(self, ruling: Ruling, category: str) -> str:
        """What is shown instead of recalled text."""
        if ruling.replacement is not None:
            return ruling.replacement
        texts = self.document.replacements
        return texts["stop"] if ruling.action == "stop" else texts.get(category, texts["default"])

    def tighten(self, asked: Delivery, admission: Admission) -> Delivery:
        """The delivery nearest to what was asked that policy allows."""
        return delivery.tighten(asked, self.document.delivery, admission.delivery)
