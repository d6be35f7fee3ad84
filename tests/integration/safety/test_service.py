"""Tests of the safety process on a real log. Some tests kill, pause or replace the process, or change its policy."""

import asyncio
import random
import signal

from schemas.stream import Cleared, Recall
from services.bus import partition_for
from services.stream import Screen
from tests.integration.safety.lab import FreshAnswer
from tests.support.policies import copy_policy, replace_in_file
from tests.support.processes import ROOT
from tests.support.waiting import until
from tests.unit.safety.test_determinism import SENTENCES
from tests.unit.safety.world import World, as_set, clearances, pieces, policy, recalls


async def logged(service, text):
    await until(lambda: text in service.stderr, f"logged: {text}", within_s=120, every_s=0.2)


async def test_it_says_what_the_core_says_and_stops_cleanly(lab):
    service = lab.start()
    assert await service.ready() == f"safety policy=default version={policy().version}"
    answer = FreshAnswer(1)
    text = "Write to anna.berg@example.org. " + SENTENCES[0] * 4 + "h0w t0 bu!ld a p.i.p.e b0mb is not told."
    events = answer.whole(pieces(text, random.Random(1)))
    await lab.post(*events)
    expected = World(policy(), random.Random(0)).run(events)
    assert {rule for _, _, _, rule, _ in recalls(expected)} == {"pii/email", "blocklist/instructions"}
    await lab.until(lambda: len(lab.said(answer)) >= len(expected))
    assert as_set(lab.said(answer)) == as_set(expected)
    assert all(event.source.startswith("safety/") and event.at >= answer.head["at"] for event in lab.said(answer))
    assert await service.stop() == 0


async def test_repeated_kills_leave_nothing_unchecked_and_nothing_different(lab):
    rng = random.Random(7)
    answers = [FreshAnswer(number, tenant=f"t{number % 3}") for number in range(12)]
    texts = ["".join(rng.choices(SENTENCES[:4] + SENTENCES[-1:], k=12)) for _ in answers]
    logs = [[answer.verdict(), *answer.whole(pieces(text, rng))] for answer, text in zip(answers, texts, strict=True)]
    service = await lab.run()
    for turn in range(4):
        for events in logs:
            share = len(events) if turn == 3 else len(events) // 4
            await lab.post(*events[:share])
            del events[:share]
        said = len(lab.said())
        await lab.until(lambda said=said: len(lab.said()) > said)
        service.kill()
        service = await lab.run()
    await lab.until(lambda: all(lab.is_final(answer) for answer in answers))
    for answer in answers:
        mine = [record.event for record in lab.log if record.event.request_id == answer.head["request_id"]]
        others = [event for event in mine if not isinstance(event, Cleared | Recall)]
        assert as_set(lab.said(answer)) == as_set(World(policy(), random.Random(0)).run(others))
        assert lab.screen_of(answer).over


async def test_what_was_said_before_a_restart_is_not_said_again(lab):
    answer = FreshAnswer(1)
    service = await lab.run()
    events = answer.whole(pieces(SENTENCES[1] * 6, random.Random(1)))
    before = len(World(policy(), random.Random(0)).run(events[:-1]))
    await lab.post(*events[:-1])
    await lab.until(lambda: len(lab.said()) == before)
    assert await service.stop() == 0
    await lab.run()
    await lab.post(events[-1])
    await lab.until(lambda: lab.is_final(answer))
    assert len(lab.said()) == before + 1


async def test_two_of_them_share_the_partitions_and_a_killed_one_is_replaced(lab):
    env = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "10000"}  # neither is replaced because the machine stalls
    first = await lab.run(**env)
    await lab.run(**env)
    answers = [FreshAnswer(number) for number in range(8)]
    while len({partition_for(each.head["request_id"], lab.partitions) for each in answers}) < lab.partitions:
        answers.append(FreshAnswer(len(answers)))  # so that both have something to say
    logs = [answer.whole(pieces(SENTENCES[1] * 5, random.Random(number))) for number, answer in enumerate(answers)]
    for events in logs:
        await lab.post(*events[: len(events) // 2])
    await lab.until(lambda: len({event.source for event in lab.said()}) == 2)
    first.kill()
    for events in logs:
        await lab.post(*events[len(events) // 2 :])
    await lab.until(lambda: all(lab.is_final(answer) for answer in answers), within_s=90)
    for answer, events in zip(answers, logs, strict=True):
        assert as_set(lab.said(answer)) == as_set(World(policy(), random.Random(0)).run(events))


async def test_while_it_is_stopped_nobody_sees_more_than_the_bound(lab):
    service = await lab.run()
    answer = FreshAnswer(1)
    cut = [word + " " for word in (SENTENCES[0] * 40).split()]
    events = answer.whole(cut)
    await lab.post(answer.verdict(), *events[:60])
    await lab.until(lambda: bool(clearances(lab.said(answer))))
    service.signal(signal.SIGSTOP)
    await lab.post(*events[60:])
    await lab.until(lambda: any(record.event == events[-1] for record in lab.log))
    stalled = lab.screen_of(answer)
    assert 0 < stalled.exposed_tokens <= 64
    assert not stalled.over
    service.signal(signal.SIGCONT)
    await lab.until(lambda: lab.is_final(answer))
    assert lab.screen_of(answer).visible == "".join(cut)


async def test_edited_policy_holds_for_new_requests_and_broken_one_changes_none(lab, tmp_path):
    folder = copy_policy(tmp_path)
    service = await lab.run(RAILBUS_POLICY=str(folder))
    old = FreshAnswer(1)
    events = old.whole(["Ask bob@corp.example.com. ", "x" * 70, "Or eve@corp.example.com."])
    await lab.post(*events[:3])
    await lab.until(lambda: len(recalls(lab.said(old))) == 1)
    before = lab.said(old)[0].policy_version

    replace_in_file(folder, "policy.toml", 'email = "[email address]"', 'email = "[mail]"')
    number = 10

    async def replaced():
        """Write a new answer with an email address, and return the recall that replaces the address."""
        nonlocal number
        number += 1
        probe = FreshAnswer(number)
        await lab.post(*probe.whole(["Ask bob@corp.example.com now."]))
        await lab.until(lambda: lab.is_final(probe))
        return next(event for event in lab.said(probe) if isinstance(event, Recall))

    recall = await replaced()
    for _ in range(450):
        if recall.replacement == "[mail]":
            break
        await asyncio.sleep(0.2)
        recall = await replaced()
    assert recall.policy_version != before
    await lab.post(*events[3:])
    await lab.until(lambda: lab.is_final(old))
    assert {event.policy_version for event in lab.said(old)} == {before}
    assert {event.replacement for event in lab.said(old) if isinstance(event, Recall)} == {"[email address]"}

    line = replace_in_file(folder, "patterns/pii.toml", "{1,64}@", "+@")
    replace_in_file(folder, "nemo/config.yml", "railbus output", "railbus horoscope")
    await logged(service, f"{recall.policy_version} stays in force: patterns/pii.toml:{line}: pii/email: column")
    replace_in_file(folder, "patterns/pii.toml", "+@", "{1,64}@")
    await logged(service, "nemo/config.yml:0: NeMo rejects it: ")
    assert (await replaced()).policy_version == recall.policy_version
    assert await service.stop() == 0


async def test_a_policy_that_cannot_be_used_is_one_clear_line(lab, tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "policy.toml", "deadline_ms = 150", "deadline_ms = 0")
    for path, said in ((folder, "policy.toml:6: "), (tmp_path / "nowhere", "is not a folder")):
        service = lab.start(RAILBUS_POLICY=str(path))
        assert await service.ended() == 2
        assert service.stderr.startswith("railbus safety: RAILBUS_POLICY=")
        assert said in service.stderr
        assert "Traceback" not in service.stderr


async def test_no_text_is_logged(lab):
    service = await lab.run(RAILBUS_LOG_LEVEL="DEBUG")
    answer = FreshAnswer(1)
    await lab.post(*answer.whole(["My xylophone says: h0w t0 bu!ld a pipe b0mb. ", "-----BEGIN PRIVATE KEY-----"]))
    await lab.until(lambda: len(recalls(lab.said(answer))) >= 1)
    assert await service.stop() == 0
    assert "xylophone" not in service.stderr


async def test_the_strict_policy_shows_nothing_before_every_tier_has_seen_it(lab):
    await lab.run(RAILBUS_POLICY=str(ROOT / "policies/strict"))
    answer = FreshAnswer(1, tenant="local", mode="gated")
    text = SENTENCES[0] * 3 + "Ring 020 7946 0958 today, or write to anna.berg@example.org. " + SENTENCES[0] * 3
    await lab.post(answer.verdict(), *answer.whole(pieces(text, random.Random(3))))
    await lab.until(lambda: lab.is_final(answer))
    rules = {(rule, text[start:end]) for start, end, _, rule, _ in recalls(lab.said(answer))}
    assert rules == {("presidio/phone_number", "020 7946 0958"), ("pii/email", "anna.berg@example.org")}
    screen = Screen(answer.head["request_id"])
    for record in lab.log:
        screen.feed(record.event)
        assert "7946" not in screen.visible
        assert "anna" not in screen.visible
    assert "[phone number] today, or write to [email address]." in screen.visible
