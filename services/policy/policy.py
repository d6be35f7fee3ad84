import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from schemas.requests import Delivery, DeliveryMode
from services.policy.engines.decision_log import DecisionListener, RegoDecision
from services.policy.engines.rego import Rego
from services.policy.errors import RulingError
from services.policy.matching import Automaton, Rule
from services.policy.matching.folding import FoldedWords
from services.policy.rulings import (
    ADMISSION,
    FINDING,
    Admission,
    AdmissionRequest,
    DeliveryFloor,
    Finding,
    Ruling,
    read_admission,
    read_ruling,
)
from services.policy.source.document import DeliveryBounds, OnBroken, PolicyDocument
from services.policy.source.files import Files
from services.runtime.classes.service_classes import ServiceClasses

T = TypeVar("T")

ENTRY_POINTS: Final = (ADMISSION, FINDING)
_MAX_RULINGS_KEPT: Final = 20_000
_STRICTNESS: Final[dict[DeliveryMode, int]] = {"optimistic": 0, "windowed": 1, "gated": 2}


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False, repr=False)
class Policy:
    """A loaded policy. Load one with ``services.policy.load``.

    Attributes:
        version: Hash of all files.
        document: The content of ``policy.toml``.
        classes: The classes of requests, including the built-in classes.
        rules: The patterns of ``patterns/*.toml``, sorted by name.
        automaton: The automaton of the rules. Two threads must not use it at the same time.
        folded: The words that are found even if they are disguised.
        rego: The compiled ``rego/*.rego``, with the data of ``rego/data.json``.
        files: The content of the files, by relative path.
    """

    version: str
    document: PolicyDocument
    classes: ServiceClasses
    rules: tuple[Rule, ...]
    automaton: Automaton
    folded: FoldedWords
    rego: Rego
    files: Files
    _rulings: dict[Finding, Ruling]
    _listeners: list[DecisionListener] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Policy({self.document.name!r}, {self.version!r})"

    def admit(self, request: AdmissionRequest) -> Admission:
        """Return the decision of ``admission.rego``.

        Raises:
            RulingError: Rego gave no answer, or an invalid one. The caller must fail closed.
        """
        return self._ask(ADMISSION, msgspec.to_builtins(request), read_admission)

    def rule_on(self, finding: Finding) -> Ruling:
        """Return the ruling of ``findings.rego`` on a finding. Rulings are cached.

        Raises:
            RulingError: Rego gave no answer, or an invalid one. The caller must fail closed.
        """
        ruling = self._rulings.get(finding)
        if ruling is None:
            if len(self._rulings) >= _MAX_RULINGS_KEPT:
                self._rulings.clear()
            ruling = self._ask(FINDING, msgspec.to_builtins(finding), lambda answer: read_ruling(answer, finding.side))
            self._rulings[finding] = ruling
        elif self._listeners:
            self._notify(FINDING, msgspec.to_builtins(finding), _plain(ruling), None, 0)
        return ruling

    def on_broken(self, rail: str) -> OnBroken:
        """Return what to do with a request if this rail fails or times out."""
        rails = self.document.rails
        own = next((spec.on_broken for spec in rails.rail if spec.name == rail), None)
        return own or rails.on_broken

    def listen(self, listener: DecisionListener) -> None:
        """Call ``listener`` with each decision of Rego from now on, including decisions from the cache."""
        self._listeners.append(listener)

    def _ask(self, entry_point: str, asked: dict[str, Any], read: Callable[[Any], T]) -> T:
        began = time.thread_time_ns() if self._listeners else 0  # CPU time, as the process may be paused meanwhile
        answer, error = None, None
        try:
            answer = self.rego.ask(entry_point, asked)
            return read(answer)
        except RulingError as unusable:
            error = str(unusable)
            raise
        finally:
            if self._listeners:
                self._notify(entry_point, asked, answer, error, time.thread_time_ns() - began)

    def _notify(self, entry_point: str, asked: dict[str, Any], answer: Any, error: str | None, took_ns: int) -> None:
        decision = RegoDecision(
            entry_point=entry_point, asked=asked, answer=answer, error=error, took_ns=took_ns,
            policy=self.document.name, version=self.version,
        )  # fmt: skip
        for listener in self._listeners:
            listener(decision)

    def refusal(self, reason: str) -> str:
        """Return the text to show to a user whose request was denied for this reason."""
        texts = self.document.refusals
        return texts.get(reason, texts["default"])

    def replacement(self, ruling: Ruling, category: str) -> str:
        """Return the text to show instead of removed text."""
        if ruling.replacement is not None:
            return ruling.replacement
        texts = self.document.replacements
        return texts["stop"] if ruling.action == "stop" else texts.get(category, texts["default"])

    def tighten(self, asked: Delivery, admission: Admission) -> Delivery:
        return tighten(asked, self.document.delivery, admission.delivery)


def tighten(asked: Delivery, bounds: DeliveryBounds, floor: DeliveryFloor) -> Delivery:
    """Return the requested delivery, made stricter where the policy's bounds or Rego require it.

    If no mode in ``bounds`` is strict enough, the mode is ``gated``.

    Args:
        asked: The requested delivery.
        bounds: The policy's bounds.
        floor: The least strict delivery that Rego allows.
    """
    strictness = max(_STRICTNESS[asked.mode], _STRICTNESS[floor.mode])
    allowed = [mode for mode in bounds.modes if _STRICTNESS[mode] >= strictness]
    exposure = min(asked.max_exposure_tokens, bounds.max_exposure_tokens)
    if floor.max_exposure_tokens is not None:
        exposure = min(exposure, floor.max_exposure_tokens)
    return Delivery(
        mode=min(allowed, key=_STRICTNESS.__getitem__, default="gated"),
        hold_tokens=max(asked.hold_tokens, bounds.min_hold_tokens, floor.hold_tokens),
        hold_ms=max(asked.hold_ms, bounds.min_hold_ms, floor.hold_ms),
        max_exposure_tokens=exposure,
    )


def _plain(ruling: Ruling) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(ruling)
    return {key: value for key, value in plain.items() if value is not None}
