"""Test the commands of ``railbus`` against a whole tree."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from schemas.ids import uuid7
from services.cli.client.answer_ops import parse_op
from services.stream import apply
from tests.support.processes import bare_environment
from tests.support.waiting import wait_until

SAID = ("What is a log?", "--max-tokens", "30")


def ops_of(done):
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines, [parse_op(line) for line in lines]


def text_of(ops):
    visible = ""
    for op in ops:
        visible = apply(visible, op)
    return visible


@pytest.mark.parametrize("via", ["edge", "kafka"])
def test_an_answer_is_streamed_and_its_result_told(tree, via):
    done = tree.railbus("ask", *SAID, "--via", via)
    assert done.returncode == 0, done
    words = len(done.stdout.split())  # the simulated engine says one word a token, and may end before the limit
    assert 0 < words <= 30
    assert done.stderr.startswith("completed, first token after ")
    assert f" {words} tokens at" in done.stderr


@pytest.mark.parametrize("via", ["edge", "kafka"])
def test_json_lines_are_the_ops_in_log_order(tree, via):
    done = tree.railbus("ask", *SAID, "--json", "--via", via)
    assert done.returncode == 0, done
    lines, ops = ops_of(done)
    assert [line["op"] for line in lines[:2]] == ["begin", "show"]
    assert [line["op"] for line in lines[-2:]] == ["finish", "close"]
    assert len({line["request_id"] for line in lines}) == 1
    places = [tuple(map(int, line["id"].split(":"))) for line in lines]
    assert places == sorted(places)
    assert len(text_of(ops).split()) == lines[-2]["usage"]["completion_tokens"] > 0


def test_what_the_edge_showed_is_what_the_log_says(tree):
    lines, ops = ops_of(tree.railbus("ask", *SAID, "--json"))
    tail = tree.railbus("tail", "--request", lines[0]["request_id"], "--no-follow", "--json")
    assert tail.returncode == 0, tail
    records = [json.loads(line) for line in tail.stdout.splitlines()]
    kinds = [record["kind"] for record in records]
    assert kinds[:3] == ["Request", "Started", "Chunk"] or sorted(kinds[:4]) == [
        "Attached",
        "Chunk",
        "Request",
        "Started",
    ]
    assert "Closed" in kinds
    chunks = [record["event"]["text"] for record in records if record["kind"] == "Chunk"]
    assert "".join(chunks) == text_of(ops)
    assert records[0]["event"]["messages"] is None


def test_tail_hides_prompts_until_it_is_asked_for_them(tree):
    prompt = "a very private question"
    lines, _ = ops_of(tree.railbus("ask", prompt, "--max-tokens", "4", "--json"))
    request = ("tail", "--request", lines[0]["request_id"], "--no-follow")
    hidden, shown = tree.railbus(*request), tree.railbus(*request, "--show-prompts")
    assert "Request" in hidden.stdout
    assert prompt not in hidden.stdout
    assert prompt in shown.stdout


def test_a_request_that_is_not_on_the_log_is_reported(tree):
    request = uuid7(1_700_000_000_000, 1)
    done = tree.railbus("tail", "--request", request, "--no-follow")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"no event of request {request} is on the log at {tree.kafka}" in done.stderr


def test_tail_follows_from_now_on(tree):
    follower = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "tail", "--topic", "accounts", "--json"],
        stdout=subprocess.PIPE, text=True, cwd=tree.folder, env=bare_environment(),
    )  # fmt: skip
    asked = set()

    def ask_until_it_is_seen():  # nobody knows when it follows: it says nothing before the first event
        lines, _ = ops_of(tree.railbus("ask", *SAID, "--json"))
        asked.add(lines[0]["request_id"])
        return reading.done()

    with ThreadPoolExecutor(1) as pool:
        try:
            reading = pool.submit(follower.stdout.readline)
            wait_until(ask_until_it_is_seen, "the follower prints what comes", within_s=90, every_s=0.5)
            assert json.loads(reading.result())["event"]["request_id"] in asked, "what was there before is not printed"
        finally:
            follower.send_signal(signal.SIGINT)
            assert follower.wait(60) == 130
            follower.stdout.close()


def test_topics_are_counted(tree):
    tree.railbus("ask", *SAID)
    done = tree.railbus("topics")
    assert done.returncode == 0, done
    rows = {line.split()[0]: line.split()[1:3] for line in done.stdout.splitlines()[1:]}
    assert rows["railbus.streams"][0] == "4"
    assert int(rows["railbus.streams"][1]) > 3
    assert rows["railbus.dead"][0] == "1"


def test_the_doctor_finds_the_tree_well(tree):
    def well():  # it gives no service longer than three seconds to answer
        told.append(tree.railbus("doctor"))
        return told[-1].returncode == 0

    told = []
    wait_until(well, "every service answers", within_s=90)
    done = told[-1]
    assert "MISSING" not in done.stdout
    for service in ("broker", "edge", "generator", "router", "redis"):
        assert f"\nok       {service} " in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--model", "simulated-err503"), 1, "failed"),
        (("--model", "simulated-mute", "--total-ms", "700"), 1, "expired"),
        (
            ("--model", "no-such-model"),
            2,
            "ask: this model is not served here; served is 'simulated' (--model: leave it out for whatever is served)",
        ),
        (("--model", "no-such-model", "--via", "kafka"), 2, "this model is not served here"),
        (("--max-tokens", "0"), 2, "at max_tokens. (--max-tokens)"),
        (("--temperature", "7"), 2, "temperature"),
    ],
)
def test_exit_codes_and_reasons(tree, args, code, said):
    done = tree.railbus("ask", "hello", *args)
    assert done.returncode == code, done
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_a_question(tree):
    asking = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "ask", "hello", "--model", "simulated-stall3"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tree.folder, env=bare_environment(),
    )  # fmt: skip
    assert asking.stdout.read(3)
    asking.send_signal(signal.SIGINT)
    _, stderr = asking.communicate(timeout=60)
    assert asking.returncode == 130
    assert "Traceback" not in stderr


def test_audit_says_where_the_time_went(tree):
    lines, _ = ops_of(tree.railbus("ask", *SAID, "--json"))
    request_id = lines[0]["request_id"]

    wait_until(lambda: "Detached" in tree.railbus("audit", "show", request_id).stdout, "the connection's receipt", 90)
    shown = tree.railbus("audit", "show", request_id)
    told = json.loads(tree.railbus("audit", "show", request_id, "--json", "--plain-token-ms", "30").stdout)

    assert shown.returncode == 0, shown.stderr
    assert "-> ends: completed" in shown.stdout
    assert "was sent exactly the first" in shown.stdout
    assert "from receipt to the last byte" in shown.stdout
    latency = told["latency"]
    assert sum(part["ms"] for part in latency["parts"]) == pytest.approx(latency["total_ms"], abs=0.02)
    assert latency["speculation_earned_ms"] is not None
    assert {"Request", "Started", "Chunk", "Closed"} <= {event["kind"] for event in told["events"]}
    assert all(event["event"]["messages"] is None for event in told["events"] if event["kind"] == "Request")


def test_audit_of_an_unknown_request_names_the_remedy(tree):
    done = tree.railbus("audit", "show", "019a8c1f-0000-7000-8000-000000000000")

    assert done.returncode == 1
    assert "check the id" in done.stderr
