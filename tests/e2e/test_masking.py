"""Test with a whole tree that a prompt with personal data gets the answer to the masked prompt, in both lanes."""

import json

from schemas.topics import REQUESTS_BATCH
from services.bus import BusSettings, Producer
from tests.integration.rails.lab import make_request
from tests.support.model_server import ScriptedAnswer
from tests.support.waiting import wait_until

PROMPT = "Mail anna@example.org"
MASKED = "Mail [email address]"


def on_log(tree, request_id):
    """Return all events of a request on the log, by kind."""
    told = tree.railbus("tail", "--request", request_id, "--no-follow", "--json", "--show-prompts")
    events: dict[str, list[dict]] = {}
    for line in told.stdout.splitlines():
        record = json.loads(line)
        events.setdefault(record["kind"], []).append(record["event"])
    return events


def prompts(events):
    return sorted((one["attempt"], one["lane"], one["messages"][0]["content"]) for one in events["Request"])


def test_a_masked_prompt_is_asked_again_and_only_that_answer_is_shown(governed):
    tree, speaker = governed
    speaker.sayings["default"] = ScriptedAnswer("Done and dusted.")

    def masked():
        asked_once = tree.railbus("ask", "--json", PROMPT)
        ops = [json.loads(line) for line in asked_once.stdout.splitlines()]
        assert [op["trigger"] for op in ops if op["op"] == "restart"] == ["mask"]
        begins = [op["attempt"] for op in ops if op["op"] == "begin"]
        assert begins[-1] == 2
        again = next(place for place, op in enumerate(ops) if op["op"] == "restart")
        assert not [op for op in ops[:again] if op["op"] == "show"]
        assert "".join(op["text"] for op in ops if op["op"] == "show") == "Done and dusted."
        events = on_log(tree, ops[0]["request_id"])
        assert prompts(events) == [(1, "interactive", PROMPT), (2, "interactive", MASKED)]
        assert [one["trigger"] for one in events["Cutover"]] == ["mask"]
        (verdict,) = events["Verdict"]
        assert verdict["decision"] == "mask"
        return {rail["rail"]: rail["detail"] for rail in verdict["rails"]}["pii"]

    assert masked().startswith("mask pii/email")
    # The rails wait at most 50 ms for a remembered verdict. On a busy machine, it may come later.
    wait_until(lambda: masked() == "mask pii/email (remembered)", "the verdict is remembered", within_s=90)


async def test_the_batch_is_judged_and_masked_as_well(governed):
    tree, speaker = governed
    speaker.sayings["default"] = ScriptedAnswer("Done and dusted.")
    producer = Producer(BusSettings(bootstrap=tree.kafka), role="app", name="test")
    await producer.start()
    request = make_request(77, PROMPT, lane="batch", tenant="local")
    await producer.send(REQUESTS_BATCH, request)
    await producer.stop()
    wait_until(lambda: "Closed" in on_log(tree, request.request_id), "the batch request is closed", within_s=60)
    events = on_log(tree, request.request_id)
    assert prompts(events) == [(1, "batch", PROMPT), (2, "batch", MASKED)]
    assert [one["outcome"] for one in events["Closed"]] == ["completed"]
