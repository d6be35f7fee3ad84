"""Test that `railbus audit rejudge` reports exactly the decisions that another policy would change."""

import asyncio
import json
import random
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")

from schemas.requests import Message, Request
from schemas.stream import RailOutcome, Verdict
from schemas.topics import REQUESTS, STREAMS
from services.policy import load
from tests.support.archives import make_archive, stored
from tests.support.policies import copy_policy, replace_in_file
from tests.support.processes import ROOT, bare_environment
from tests.support.recorded import recorded
from tests.unit.safety.world import RunWriter, pieces, request_id

MAIL, CARD, LEAK, DISGUISED = "anna.berg@example.org", "4111 1111 1111 1111", "Project Bluefin Heron", "p1pe b-o-m-b"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TEXTS = {
    0: f"Write to {MAIL} when the leaves have turned, and count the birds on the roof while you wait there.",
    1: f"Pay with {CARD} at the counter, and then walk on along the river until the bridge comes into sight.",
    2: f"The name is {LEAK} and nobody was told of it before the summer, or so the story goes around here.",
    3: "A plain answer without anything that any rule could find, about the weather and the harvest of apples.",
    4: f"Both {MAIL} and {CARD} are in this one, which makes it a good example for two rules at the same time.",
    5: "The new word is Quartz Meadow, and under the first policy it means nothing to anybody who reads it now.",
}  # fmt: skip


def log(rng):
    """Yield the events of all answers and their verdicts. The texts are cut, and the answers interleaved, at random."""
    lines = []
    for number, text in TEXTS.items():
        answer = RunWriter(number)
        passed = (RailOutcome(rail="admission", result="passed", ms=1.0),)
        verdict = Verdict(**answer.head, decision="allow", policy_version="v", rails=passed)
        lines.append([verdict, *answer.whole(pieces(text, rng)), answer.closed(cause="answered")])
    while any(lines):
        yield rng.choice([line for line in lines if line]).pop(0)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rejudge") / "archive"
    events = asyncio.run(recorded(load(ROOT / "policies" / "default"), log(random.Random(5))))
    asked = [
        Request(**RunWriter(number).head, model="large" if number == 3 else "small",
                messages=(Message(role="user", content="hello"),))
        for number in TEXTS
    ]  # fmt: skip
    begin_ms = 1_000_000_000  # when `RunWriter` says that its requests were made
    records = stored(events, STREAMS.name, begin_ms=begin_ms) + stored(asked, REQUESTS.name, begin_ms=begin_ms)
    make_archive(folder, records, per_file=50)
    return folder


def rejudge(archive, policy, *options):
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "audit", "rejudge", "--policy", str(policy), "--archive", str(archive),
         "--from", "beginning", *options], capture_output=True, text=True, timeout=120, cwd=ROOT,
        env=bare_environment(), check=False,
    )  # fmt: skip
    assert done.returncode in {0, 1}, done
    return done


def test_the_same_policy_gives_no_difference(archive):
    done = rejudge(archive, ROOT / "policies" / "default", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["differences"], told["same"], told["requests"]) == (0, [], 5, 6)


def test_a_changed_policy_changes_exactly_what_was_planted(archive, tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(
        folder, "rego/data.json", '"output": {\n      "email": "redact"', '"output": {\n      "email": "flag"'
    )
    replace_in_file(folder, "rego/data.json", '"payment_card": "redact"', '"payment_card": "stop"')
    replace_in_file(folder, "rego/data.json", '"models": ["*"]', '"models": ["small"]')
    replace_in_file(folder, "patterns/blocklist.toml", '"Operation Glass Lantern"]', '"Quartz Meadow"]')
    for name in ("findings", "texts", "admission", "broken"):  # golden cases of the policy before
        (folder / "golden" / f"{name}.jsonl").write_text("")
    done = rejudge(archive, folder, "--json")
    told = json.loads(done.stdout)
    found = {
        (each["change"], each["request_id"], side["rule"], side["start"], side["action"])
        for each in told["differences"]
        for side in [each["after"] or each["before"]]
    }
    assert done.returncode == 1
    assert found == {
        ("disappears", request_id(0), "pii/email", TEXTS[0].index(MAIL), "redact"),
        ("disappears", request_id(4), "pii/email", TEXTS[4].index(MAIL), "redact"),
        ("moves", request_id(1), "pii/payment_card", TEXTS[1].index(CARD), "stop"),
        ("moves", request_id(4), "pii/payment_card", TEXTS[4].index(CARD), "stop"),
        ("appears", request_id(5), "blocklist/code_names", TEXTS[5].index("Quartz"), "stop"),
    }
    assert told["same"] == 1  # the code name that both policies know
    assert [(each["request_id"], each["change"]) for each in told["prompts"]["differences"]] == [
        (request_id(3), "denied")
    ]
    page = tmp_path / "page.html"
    assert rejudge(archive, folder, "--html", str(page)).stdout == ""
    text = page.read_text()
    assert text.count("<tr><td>" + request_id(4)) == 2  # one recall disappears, one moves
    assert "blocklist/code_names: 1 appears" in text
    assert "denied now" in text
    assert not any(secret in text for secret in (MAIL, CARD, "Quartz"))
    table = rejudge(archive, folder).stdout
    assert f"{request_id(5)} attempt 1  appears" in table
    assert f"{request_id(3)}  denied now" in table


def test_labels_give_recall_and_precision(archive, tmp_path):
    labels = tmp_path / "labels.jsonl"
    at = TEXTS[0].index(MAIL)
    told = [
        {"id": request_id(0), "span": [at, at + len(MAIL)], "category": "email"},
        {"id": request_id(3), "span": [0, 5], "category": "email"},
        {"id": request_id(77), "span": [0, 5], "category": "email"},
    ]
    labels.write_text("\n".join(map(json.dumps, told)))
    found = json.loads(rejudge(archive, ROOT / "policies" / "default", "--json", "--labels", str(labels)).stdout)
    assert found["labels"] == {"email": {"labels": 2, "found": 1, "recall": 0.5}}
    assert found["labels_of_unknown_requests"] == 1
    rules = {row["rule"]: row for row in found["rules"]}
    assert (rules["pii/email"]["recalls"], rules["pii/email"]["precision"]) == (2, 0.5)
    assert rules["pii/email"]["exposed_chars_p50"] >= len(MAIL)
    assert rules["pii/email"]["wrong_chars"] == len(MAIL)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "nowhere"), "--policy nowhere"),
        (("--archive", "nowhere"), "there is no archive at nowhere"),
        (("--html", "nowhere/page.html"), "--html nowhere/page.html: No such file or directory"),
        (("--labels", str(ROOT / "README.md")), "line 1: must be a JSON object"),
    ],
)
def test_a_mistake_is_one_sentence(archive, options, said):
    given = {"--policy": str(ROOT / "policies" / "default"), "--archive": str(archive)} | dict([options])
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "audit", "rejudge", *(part for pair in given.items() for part in pair)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, env=bare_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
