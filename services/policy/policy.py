"""A policy as it is used: immutable, with its version."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from schemas.requests import Delivery
from services.policy import delivery
from services.policy.decisions import Decision, Listener
from services.policy.document import OnBroken, PolicyDocument
from services.policy.errors import RulingError
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

T = TypeVar("T")

ENTRY_POINTS: Final = (ADMISSION, FINDING)
_MAX_RULINGS_KEPT: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
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
    _listeners: list[Listener] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Policy({self.document.name!r}, {self.version!r})"

    def admit(self, asked: Admittance) -> Admission:
        """What ``admission.rego`` says.

        Raises:
            RulingError: No usable answer; fail closed.
        """
        return self._ask(ADMISSION, asdict(asked), read_admission)

    def rule_on(self, finding: Finding) -> Ruling:
        """What ``findings.rego`` says; the answer depends on nothing but the finding and is kept.

        Raises:
            RulingError: No usable answer; fail closed.
        """
        ruling = self._rulings.get(finding)
        if ruling is None:
            if len(self._rulings) >= _MAX_RULINGS_KEPT:
                self._rulings.clear()
            ruling = self._ask(FINDING, asdict(finding), lambda answer: read_ruling(answer, finding.side))
            self._rulings[finding] = ruling
        elif self._listeners:
            self._tell(FINDING, asdict(finding), _plain(ruling), None, 0)
        return ruling

    def on_broken(self, rail: str) -> OnBroken:
        """What it means when this rail broke or ran out of time; a rail that policy does not name takes the default."""
        rails = self.document.rails
        own = next((spec.on_broken for spec in rails.rail if spec.name == rail), None)
        return own or rails.on_broken

    def listen(self, listener: Listener) -> None:
        """Have every decision told, those as well whose answer was known."""
        self._listeners.append(listener)

    def _ask(self, entry_point: str, asked: dict[str, Any], read: Callable[[Any], T]) -> T:
        began = time.perf_counter_ns()
        answer, error = None, None
        try:
            answer = self.rego.ask(entry_point, asked)
            return read(answer)
        except RulingError as unusable:
            error = str(unusable)
            raise
        finally:
            if self._listeners:
                self._tell(entry_point, asked, answer, error, time.perf_counter_ns() - began)

    def _tell(self, entry_point: str, asked: dict[str, Any], answer: Any, error: str | None, took_ns: int) -> None:
        decision = Decision(
            entry_point=entry_point, asked=asked, answer=answer, error=error, took_ns=took_ns,
            policy=self.document.name, version=self.version,
        )  # fmt: skip
        for listener in self._listeners:
            listener(decision)

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


def _plain(ruling: Ruling) -> dict[str, Any]:
    """As Rego said it: without what it left out."""
    plain: dict[str, Any] = msgspec.to_builtins(ruling)
    return {key: value for key, value in plain.items() if value is not None}
