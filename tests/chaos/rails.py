"""Inject faults into the rails service. The test writes requests, and knows which prompts the default policy denies."""

import asyncio

from schemas.requests import Request
from schemas.stream import Verdict
from tests.chaos.faults import run_round
from tests.chaos.results import RoundResult, conclude
from tests.chaos.talk import STEP_S, Talk
from tests.support.waiting import comes_true

PROMPTS = (("What is a log good for?", "allow"), ("Why does AKIAIOSFODNN7EXAMPLE fail?", "deny"))
MOST = 2_000


async def round_of(lab, fault, rng):
    """Send prompts before, during and after the fault, at least 32 in all, and return the result."""
    asked = []

    async def ask(stage):
        after = 0
        while len(asked) < MOST and (after < 20 or len(asked) < 32):
            after += stage.phase == 2
            prompt, decision = PROMPTS[rng.randrange(2)]
            talk = Talk(lab, prompt=prompt)
            asked.append((talk, decision))
            await talk.post(talk.ask())
            await asyncio.sleep(rng.uniform(*STEP_S))

    await run_round(lab, fault, rng, through=[ask], inside=[])
    patience_s = lab.session_s + 60
    await comes_true(lambda: all(lab.events(talk.id, Verdict) for talk, _ in asked), patience_s)
    return conclude(lab, _judge(lab, fault, asked))


def _judge(lab, fault, asked):
    found = RoundResult("rails", fault, answers=len(asked))
    for talk, decision in asked:
        verdicts = lab.events(talk.id, Verdict)
        if not verdicts:
            found.unended += 1
            found.wrong.append(f"no verdict: {talk.id}")
            continue
        if {verdict.decision for verdict in verdicts} != {decision}:
            found.outcomes += 1
            found.wrong.append(f"{talk.id}: {[v.decision for v in verdicts]} where {decision} is right")
        found.duplicates += len(verdicts) - 1
        began = lab.when(talk.id, lambda event: isinstance(event, Request))
        answered = lab.when(talk.id, lambda event: isinstance(event, Verdict))
        found.reactions.append(max(0.0, answered - began))
    return found
