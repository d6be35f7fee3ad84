"""Test ``railbus batch run --tiers``: a small model scores all lines, then a larger model scores the best lines.

The larger model also scores a sample of the lines. A budget limits how many of the best lines it scores.
"""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.support.tree import running_tree
from tests.support.waiting import wait_until

LINES = 60


class Judge(BaseHTTPRequestHandler):
    """A model server that scores candidates.

    The model ``large`` scores each candidate with the candidate's number. The model ``small`` does the same, but it
    replaces the last digit d by 9 - d.
    """

    protocol_version = "HTTP/1.1"
    asked: ClassVar = {"small": [], "large": []}

    def do_GET(self):
        self._send({"object": "list", "data": [{"id": name, "object": "model"} for name in self.asked]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = int(re.search(r"\d+", body["messages"][-1]["content"])[0])
        self.asked[body["model"]].append(number)
        score = number if body["model"] == "large" else number // 10 * 10 + 9 - number % 10
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 1_000, "total_tokens": 2_000}
        chunks = [
            {**head, "choices": [{"index": 0, "delta": {"content": f"Score: {score}"}, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
        ]
        content = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
        self._send(content, "text/event-stream")

    def _send(self, content, kind="application/json"):
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


@contextmanager
def judge():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cascade")
    with judge() as url, running_tree(folder, "--engine", "openai", "--upstream-url", url) as tree:
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", within_s=90)
        (folder / "candidates.txt").write_text("".join(f"Candidate {n}?\n" for n in range(LINES)))
        yield tree


def plan(tree, budget=""):
    path = tree.folder / "plan.toml"
    path.write_text(
        '[score]\nregex = "Score: ([0-9]+)"\nsample = 10\n'
        f'{budget}[[tier]]\nmodel = "small"\n[[tier]]\nmodel = "large"\nkeep = 0.2\nprice = "groq"\n'
    )
    return str(path)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_best_lines_have_the_larger_models_answers(tree):
    done = tree.railbus("batch", "run", "candidates.txt", "--out", "a", "--tiers", plan(tree), timeout=120)
    assert done.returncode == 0, done.stderr
    rows = read(tree.folder / "a" / "results.jsonl")
    assert [row["custom_id"] for row in rows] == [f"line-{n + 1}" for n in range(LINES)]
    refined = {n for n, row in enumerate(rows) if row["tier"] == 2}
    sample = {
        int(row["custom_id"].removeprefix("line-")) - 1 for row in read(tree.folder / "a/tier-2-sample/results.jsonl")
    }
    assert refined == sample | {40, 41} | set(range(50, 60))
    for n, row in enumerate(rows):
        content = row["response"]["body"]["choices"][0]["message"]["content"]
        assert content == f"Score: {n if n in refined else n // 10 * 10 + 9 - n % 10}"
    assert re.search(r"tier 2: rho 0\.9\d on 10 lines", done.stderr)
    assert re.search(r"all tiers: .*\$0\.0\d", done.stderr)
    asked = len(Judge.asked["large"])
    again = tree.railbus("batch", "run", "candidates.txt", "--out", "a", "--tiers", plan(tree), timeout=120)
    assert again.returncode == 0
    assert len(Judge.asked["large"]) == asked, "nothing is done twice"


def test_the_budget_bounds_what_is_refined(tree):
    budget = "[budget]\nusd = 0.0075\n"  # a line costs 0.00054 dollars, the sample 0.0054
    done = tree.railbus("batch", "run", "candidates.txt", "--out", "b", "--tiers", plan(tree, budget), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the budget pays for 3 of 12 lines" in done.stderr
    refined = {n for n, row in enumerate(read(tree.folder / "b" / "results.jsonl")) if row["tier"] == 2}
    sample = {
        int(row["custom_id"].removeprefix("line-")) - 1 for row in read(tree.folder / "b/tier-2-sample/results.jsonl")
    }
    assert len(refined - sample) <= 3
    assert refined - sample <= set(range(50, 60))


def test_a_plan_that_cannot_be_run_is_one_sentence(tree):
    path = tree.folder / "wrong.toml"
    for text, said in (
        ('[score]\nregex = "x"\n[[tier]]\nmodel = "a"\n[[tier]]\nmodel = "b"\nkeep = 0.1\n', "group"),
        ('[score]\njson = "x"\n[[tier]]\nmodel = "a"\n[[tier]]\nmodel = "b"\n', "keep must fall"),
        ('[score]\n[[tier]]\nmodel = "a"\n[[tier]]\nmodel = "b"\nkeep = 0.1\n', "one of regex, json and cel"),
    ):
        path.write_text(text)
        done = tree.railbus("batch", "run", "candidates.txt", "--out", "c", "--tiers", "wrong.toml")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr
