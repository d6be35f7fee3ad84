"""One policy version's rails on one request."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from schemas.requests import Request
from services.policy import Admission, Admittance, Policy, RailSpec
from services.rails.answers import Answer, Report, report
from services.rails.cache import Answers, Cache, key_of
from services.rails.decide import Decided, decide
from services.rails.flows import FLOWS
from services.rails.jailbreak import Classifier
from services.rails.nemo import PREFIX, NemoRails, nemo_rails
from services.rails.opa import OpaServer
from services.rails.patterns import PatternRail
from services.rails.together import Rail, run_together

if TYPE_CHECKING:
    from services.policy.presidio import Presidio

ADMISSION = "admission"
PRESIDIO = "presidio"


class Judged(NamedTuple):
    """What came of a request.

    Attributes:
        decided: The verdict's content.
        key: Under which ``answers`` are kept.
        answers: What is worth keeping: what every rail that looks at nothing but the prompt said. None: nothing new.
    """

    decided: Decided
    key: str
    answers: Answers | None


class Judge:
    """Judges requests by one policy; see ``judge_of``."""

    def __init__(
        self,
        policy: Policy,
        nemo: NemoRails,
        presidio: "Presidio | None",
        classifier: Classifier,
        opa: OpaServer | None,
        cache: Cache | None,
    ) -> None:
        self._policy = policy
        self._nemo = nemo
        self._classifier = classifier
        self._opa = opa
        self._cache = cache
        self._patterns = {
            "pii": PatternRail(policy, pii=True, presidio=presidio),
            "secrets": PatternRail(policy, pii=False),
        }
        self._specs: dict[str, RailSpec] = {rail.name: rail for rail in policy.document.rails.rail}

    async def judge(self, request: Request) -> Judged:
        """The verdict, within the policy's deadline."""
        began = time.perf_counter()
        admitted: list[Admission] = [] if ADMISSION in self._specs else [Admission(allow=True)]
        content = self._content_rails(request)
        key = key_of(self._policy, request)
        known = await self._cache.find(key, tuple(content)) if self._cache is not None else None
        rails: dict[str, Rail] = {}
        if ADMISSION in self._specs:
            rails[ADMISSION] = partial(self._admit, request, admitted)
        rails |= {} if known is not None else content
        spent_s = time.perf_counter() - began
        reports = await run_together(rails, {name: self._deadline_s(name) - spent_s for name in rails})
        answers = _complete(reports) if known is None else None
        reports += _remembered(known or {})
        decided = decide(self._policy, request, reports, admitted[0] if admitted else None)
        return Judged(decided, key, answers)

    async def remember(self, judged: Judged) -> None:
        """Keep what was said, for the next request of the same words."""
        if self._cache is not None and judged.answers:
            await self._cache.keep(judged.key, judged.answers)

    async def close(self) -> None:
        """Stop the policy's engine."""
        await self._nemo.close()

    def _deadline_s(self, name: str) -> float:
        spec = self._specs.get(name)
        own_ms = None if spec is None else spec.deadline_ms
        return (self._policy.document.rails.deadline_ms if own_ms is None else own_ms) / 1_000

    def _content_rails(self, request: Request) -> dict[str, Rail]:
        """The rails that look at nothing but the prompt, in the order of reports."""
        flows = {name: flow for flow, name in FLOWS.items()}
        rails: dict[str, Rail] = {}
        for name, spec in self._specs.items():
            if name in self._patterns:
                look: Rail = partial(self._patterns[name].look, request.tenant, request.messages)
            elif name == "jailbreak":
                look = partial(self._classifier.look, self._policy, spec, request.tenant, request.messages)
            else:
                continue
            rails[name] = partial(self._nemo.ours, flows[name], look)
        for flow in self._nemo.others:
            rails[PREFIX + flow] = partial(self._nemo.other, flow, request.messages)
        return rails

    async def _admit(self, request: Request, admitted: list[Admission]) -> Answer:
        asked = Admittance(
            tenant=request.tenant,
            model=request.model,
            lane=request.lane,
            attempt=request.attempt,
            prompt_chars=sum(len(message.content) for message in request.messages),
            max_tokens=request.sampling.max_tokens,
            mode=request.delivery.mode,
            egress=request.egress,
        )
        admission = self._policy.admit(asked) if self._opa is None else await self._opa.admit(asked)
        admitted.append(admission)
        if admission.allow:
            return Answer(egress=admission.egress)
        reasons = admission.reasons or ("default",)
        return Answer(reason=reasons[0], egress=admission.egress, detail=", ".join(reasons))


def _complete(reports: list[Report]) -> Answers | None:
    """What every rail said that looks at nothing but the prompt; None when one of them said nothing."""
    content = [one for one in reports if one.rail != ADMISSION]
    answers = {one.rail: one.answer for one in content if one.answer is not None}
    return answers if len(answers) == len(content) else None


def _remembered(answers: Mapping[str, Answer]) -> list[Report]:
    found = [report(name, answer, 0.0) for name, answer in answers.items()]
    return [
        Report(rail=one.rail, result=one.result, ms=0.0, answer=one.answer, detail=f"{one.detail} (remembered)".strip())
        for one in found
    ]


async def judge_of(policy: Policy, classifier: Classifier, opa: OpaServer | None, cache: Cache | None) -> Judge:
    """A judge, ready.

    Raises:
        BrokenPolicy: NeMo does not take the policy's configuration.
    """
    wanted = PRESIDIO in policy.document.rails.recognizers
    presidio = await asyncio.to_thread(_presidio) if wanted else None
    return Judge(policy, await nemo_rails(policy), presidio, classifier, opa, cache)


def _presidio() -> "Presidio":
    from services.policy.presidio import Presidio  # heavy: only for policies that want it

    return Presidio()
