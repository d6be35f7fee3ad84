import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from schemas.requests import Request
from services.policy import Admission, AdmissionRequest, Policy, RailSpec
from services.policy.source.nemo_config import has_rails
from services.rails.cache import RailAnswers, RailCache, key_of
from services.rails.decide import VerdictContent, decide
from services.rails.jailbreak import JailbreakClassifier
from services.rails.opa import OpaClient
from services.rails.patterns import PatternRail
from services.rails.rail import Rail, RailAnswer, RailReport, report, run_rails
from services.rails.turns import ActiveRequests, Turns

if TYPE_CHECKING:
    from services.policy.engines.presidio import Presidio
    from services.rails.nemo import NemoRails

BATCH_DEADLINE_S: Final = 60.0
"""Deadline of every rail for a batch request, in seconds.

It is long, because a batch request waits while interactive requests have their turns. A rail must not fail because of
this wait.
"""

ADMISSION = "admission"
JAILBREAK = "jailbreak"
PRESIDIO = "presidio"


class Evaluation(NamedTuple):
    """The result of a request's evaluation.

    Attributes:
        key: The cache key of the request's prompt.
        answers: The rails' answers, which ``RailsEvaluator.remember`` puts into the cache. None if they came from the
            cache, or if a rail gave no answer.
    """

    content: VerdictContent
    key: str
    answers: RailAnswers | None

    @property
    def unanswered(self) -> bool:
        return any(one.result in {"broke", "timeout"} for one in self.content.rails)


class RailsEvaluator:
    def __init__(
        self,
        policy: Policy,
        nemo: "NemoRails | None",
        presidio: "Presidio | None",
        classifier: JailbreakClassifier,
        opa: OpaClient | None,
        cache: RailCache | None,
        batch_classifier: JailbreakClassifier | None = None,
        active: ActiveRequests | None = None,
    ) -> None:
        self._policy = policy
        self._nemo = nemo
        self._classifier = classifier
        self._batch_classifier = batch_classifier or classifier
        self._opa = opa
        self._cache = cache
        self._active = active or ActiveRequests()
        turns = Turns(active=self._active)
        self._patterns = {
            "pii": PatternRail(policy, turns, pii=True, presidio=presidio),
            "secrets": PatternRail(policy, turns, pii=False),
        }
        self._specs: dict[str, RailSpec] = {rail.name: rail for rail in policy.document.rails.rail}

    @property
    def has_classifier(self) -> bool:
        return JAILBREAK in self._specs

    async def evaluate(self, request: Request, *, batch: bool = False) -> Evaluation:
        """Evaluate a request. Each rail has the deadline that the policy sets, or ``BATCH_DEADLINE_S`` if ``batch``."""
        with nullcontext() if batch else self._active.request(request.tenant):
            return await self._evaluate(request, batch=batch)

    async def _evaluate(self, request: Request, *, batch: bool) -> Evaluation:
        began = time.perf_counter()
        rails, admitted = self._admission_rail(request)
        content = self._content_rails(request, batch=batch)
        key = key_of(self._policy, request)
        known = await self._cache.find(key, tuple(content)) if self._cache is not None else None
        if known is None:
            rails |= content
        spent_s = time.perf_counter() - began
        reports = await run_rails(rails, {name: self._deadline_s(name, batch=batch) - spent_s for name in rails})
        answers = _complete(reports) if known is None else None
        reports += _remembered(known or {})
        decided = decide(self._policy, request, reports, admitted[0] if admitted else None)
        return Evaluation(decided, key, answers)

    async def judge_again(self, request: Request, left_out: Collection[str] = ()) -> VerdictContent:
        """Evaluate a request from an archive, one rail after another.

        A rail in ``left_out`` does not run, and counts as passed.
        """
        # A later rail runs even if an earlier one has refused the prompt.
        rails, admitted = self._admission_rail(request)
        rails |= self._content_rails(request, batch=False)
        if ADMISSION in left_out:
            admitted = [Admission(allow=True)]
        reports: list[RailReport] = []
        for name, rail in rails.items():
            if name not in left_out:
                reports += await run_rails({name: rail}, {name: BATCH_DEADLINE_S})
        return decide(self._policy, request, reports, admitted[0] if admitted else None)

    async def remember(self, evaluation: Evaluation) -> None:
        if self._cache is not None and evaluation.answers:
            await self._cache.keep(evaluation.key, evaluation.answers)

    async def close(self) -> None:
        if self._nemo is not None:
            await self._nemo.close()

    def _deadline_s(self, name: str, *, batch: bool) -> float:
        if batch:
            return BATCH_DEADLINE_S
        spec = self._specs.get(name)
        own_ms = None if spec is None else spec.deadline_ms
        return (self._policy.document.rails.deadline_ms if own_ms is None else own_ms) / 1_000

    def _content_rails(self, request: Request, *, batch: bool) -> dict[str, Rail]:
        rails: dict[str, Rail] = {}
        classifier = self._batch_classifier if batch else self._classifier
        for name, spec in self._specs.items():
            if name in self._patterns:
                rails[name] = partial(self._patterns[name].evaluate, request.tenant, request.messages, batch=batch)
            elif name == JAILBREAK:
                rails[name] = partial(classifier.evaluate, self._policy, spec, request.tenant, request.messages)
        if self._nemo is not None:
            for name, flow in self._nemo.flows.items():
                rails[name] = partial(self._nemo.evaluate, flow, request.messages)
        return rails

    def _admission_rail(self, request: Request) -> tuple[dict[str, Rail], list[Admission]]:
        if ADMISSION not in self._specs:
            return {}, [Admission(allow=True)]
        admitted: list[Admission] = []
        return {ADMISSION: partial(self._admit, request, admitted)}, admitted

    async def _admit(self, request: Request, admitted: list[Admission]) -> RailAnswer:
        question = AdmissionRequest.of(request)
        admission = self._policy.admit(question) if self._opa is None else await self._opa.admit(question)
        admitted.append(admission)
        if admission.allow:
            return RailAnswer(egress=admission.egress)
        reasons = admission.reasons or ("default",)
        return RailAnswer(reason=reasons[0], egress=admission.egress, detail=", ".join(reasons))


def _complete(reports: list[RailReport]) -> RailAnswers | None:
    content = [one for one in reports if one.rail != ADMISSION]
    answers = {one.rail: one.answer for one in content if one.answer is not None}
    return answers if len(answers) == len(content) else None


def _remembered(answers: Mapping[str, RailAnswer]) -> list[RailReport]:
    reports = [report(name, answer, 0.0) for name, answer in answers.items()]
    return [replace(one, detail=f"{one.detail} (remembered)".strip()) for one in reports]


async def build_evaluator(
    policy: Policy,
    classifier: JailbreakClassifier,
    opa: OpaClient | None,
    cache: RailCache | None,
    batch_classifier: JailbreakClassifier | None = None,
    active: ActiveRequests | None = None,
) -> RailsEvaluator:
    """Build an evaluator. NeMo and Presidio are heavy, so they are loaded only if the policy uses them.

    Batch requests use ``batch_classifier``, or ``classifier`` if it is None. ``active`` is shared by all evaluators of
    the process.

    Raises:
        BrokenPolicy: NeMo rejects the policy's configuration.
    """
    presidio = await asyncio.to_thread(_presidio) if PRESIDIO in policy.document.rails.recognizers else None
    return RailsEvaluator(policy, await _nemo(policy), presidio, classifier, opa, cache, batch_classifier, active)


async def _nemo(policy: Policy) -> "NemoRails | None":
    if not has_rails(policy.files, "input"):
        return None
    await asyncio.to_thread(import_module, "services.rails.nemo")
    from services.rails.nemo import nemo_rails

    return await nemo_rails(policy)


def _presidio() -> "Presidio":
    from services.policy.engines.presidio import Presidio

    return Presidio()
