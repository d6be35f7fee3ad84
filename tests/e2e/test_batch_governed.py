"""Test that a job's result files have no text that the policy denied, withdrew or redacted."""

import json

from tests.support.tree import running_tree
from tests.support.waiting import wait_until

SECRET = "Project Bluefin Heron"
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def line(name, content, model):
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def test_denied_withdrawn_and_redacted_lines(tmp_path):
    with running_tree(
        tmp_path, "--engine", "simulated", governed=True, start_s=120, RAILBUS_SIM_TIME_SCALE="0.1"
    ) as tree:
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", within_s=90)
        (tmp_path / "lines.jsonl").write_text(
            line("plain", "What is a library?", "simulated-n6")
            + line("withdrawn", "What is the name?", "simulated-n8-leak3")
            + line("redacted", "Whom shall I write to?", "simulated-n8-mail3")
            + line("denied", f"My token is {TOKEN}, please use it.", "simulated-n6")
        )
        done = tree.railbus("batch", "run", "lines.jsonl", "--out", "out", timeout=120)
        assert done.returncode == 1, done.stderr
        out = tmp_path / "out"
        results = [json.loads(text) for text in (out / "results.jsonl").read_text().splitlines()]
        errors = [json.loads(text) for text in (out / "errors.jsonl").read_text().splitlines()]
        assert [row["custom_id"] for row in results] == ["plain", "redacted"]
        assert {row["custom_id"]: row["error"]["code"] for row in errors} == {
            "withdrawn": "recalled", "denied": "denied",
        }  # fmt: skip
        written = "".join(path.read_text(errors="replace") for path in out.iterdir() if path.suffix == ".jsonl")
        assert SECRET not in written
        assert "anna.berg@example.org" not in written
        assert TOKEN not in written
        assert SECRET.encode() not in (out / "results.parquet").read_bytes()
