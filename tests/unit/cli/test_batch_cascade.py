"""Tests of a cascade of models: which lines each model answers, and which model's answer each result contains."""

import json
from io import BytesIO
from types import SimpleNamespace

import pytest

from schemas.batches import BatchCreated, BatchTotals
from services.cli.batch import cascade
from services.cli.batch.cascade import run_cascade, with_model
from services.cli.batch.progress import TokenPrices
from services.cli.batch.runner import JobInput, JobOptions
from services.cli.batch.tiers import Budget, Score, Tier, Tiers
from services.jobs.ids import new_batch_id
from services.jobs.job_state import JobState
from services.runtime.errors import UserError

COUNT = 40
REGEX = "Score: ([0-9]+)"
BATCH_ID = new_batch_id(0, 1)
OPTIONS = JobOptions(window_open=1, line_attempts=1, completion_ms=1)


def line(number):
    body = {"model": "none", "messages": [{"role": "user", "content": "Why?"}]}
    return json.dumps({"custom_id": f"id-{number}", "body": body}).encode() + b"\n"


class Batches:
    """A simulated batch service whose answers contain a score.

    The model ``small`` answers line n with the score n. All other models answer it with the score 10 n. The answers to
    the lines in ``silent`` have no score.
    """

    def __init__(self, *, silent=()):
        self.silent = silent
        self.ran = {}
        self.hashes = {}
        self.input = b""
        self.store = SimpleNamespace(open=lambda _: BytesIO(self.input))

    async def run_job(self, client, out, given, options, prices):
        written = BytesIO()
        given.write(written)
        self.input = self.input or written.getvalue()
        asked = [json.loads(each) for each in written.getvalue().splitlines()]
        self.ran[out.name] = [(each["custom_id"], each["body"]["model"]) for each in asked]
        self.hashes[out.name] = given.options_hash
        out.mkdir(parents=True, exist_ok=True)
        results = []
        for each in asked:
            number = int(each["custom_id"].removeprefix("id-"))
            score = number if each["body"]["model"] == "small" else 10 * number
            text = "?" if number in self.silent else f"Score: {score}"
            body = {"choices": [{"message": {"content": text}}]}
            results.append(json.dumps({"custom_id": each["custom_id"], "response": {"body": body}}))
        (out / "results.jsonl").write_text("".join(f"{each}\n" for each in results))
        (out / "errors.jsonl").write_text("an error\n" if out.name == "tier-1" else "")
        created = BatchCreated(batch_id=BATCH_ID, tenant="t", at=0, source="test", input_file="file-a")
        totals = BatchTotals(lines=len(asked), completed=len(asked), prompt_tokens=len(asked) * 1_000_000)
        progress = SimpleNamespace(totals=totals)
        return JobState(created=created, created_ms=0, progress=progress, finished_ms=36_000 * len(asked)), []


@pytest.fixture
def run(tmp_path, monkeypatch):
    async def run(batches, *, budget=None, keep=0.25, sample=5, options_hash="", large="large", regex=REGEX):
        monkeypatch.setattr(cascade, "run_job", batches.run_job)
        tiers = Tiers(
            score=Score(regex=regex, sample=sample),
            tier=(Tier(model="small"), Tier(model=large, keep=keep)),
            budget=budget or Budget(),
        )
        prices = [TokenPrices(), TokenPrices(input=1.0, output=1.0)]

        def write(out):
            for number in range(COUNT):
                out.write(line(number))

        given = JobInput(source=tmp_path / "p.jsonl", options_hash=options_hash, write=write)
        failed = await run_cascade(batches, tmp_path, given, tiers, OPTIONS, prices)
        found = [json.loads(each) for each in (tmp_path / "results.jsonl").read_text().splitlines()]
        return failed, found

    return run


def ids(ran):
    return {name for name, _ in ran}


async def test_the_best_lines_are_answered_again_and_each_once(run):
    batches = Batches()
    failed, found = await run(batches)
    assert failed == 1
    assert batches.ran["tier-1"] == [(f"id-{n}", "small") for n in range(COUNT)]
    sample, best = batches.ran["tier-2-sample"], batches.ran["tier-2"]
    assert {model for _, model in (*sample, *best)} == {"large"}
    assert len(sample) == 5
    assert ids(sample) | ids(best) == ids(sample) | {f"id-{n}" for n in range(30, COUNT)}
    assert not ids(sample) & ids(best)
    assert [each["custom_id"] for each in found] == [f"id-{n}" for n in range(COUNT)]
    for number, each in enumerate(found):
        again = each["custom_id"] in ids(sample) | ids(best)
        assert each["tier"] == (2 if again else 1)
        content = each["response"]["body"]["choices"][0]["message"]["content"]
        assert content == f"Score: {10 * number if again else number}"


@pytest.mark.parametrize(
    ("budget", "count"),
    [(Budget(usd=8.0), 3), (Budget(usd=5.0), 0), (Budget(hours=0.47), 2), (Budget(hours=9.0, usd=99.0), 10)],
)
async def test_a_budget_pays_for_the_best_lines_first(run, budget, count):
    """After a sample of five lines, the second model answers only as many of the best lines as the budget pays for.

    The best lines have the highest scores from the first model. Each answer of either model takes 0.01 hours. Each
    answer of the second model costs one dollar.
    """
    batches = Batches()
    await run(batches, budget=budget)
    wanted = {f"id-{n}" for n in range(COUNT - count, COUNT)}
    assert ids(batches.ran.get("tier-2", ())) == wanted - ids(batches.ran["tier-2-sample"])


async def test_an_answer_without_a_score_is_not_refined(run, capsys):
    batches = Batches(silent={39})
    await run(batches)
    assert "id-39" not in ids(batches.ran["tier-2"]) | ids(batches.ran["tier-2-sample"])
    assert "tier 1: 1 answers have no score and are not refined" in capsys.readouterr().err


async def test_a_tier_without_any_score_is_the_users_mistake(run):
    with pytest.raises(UserError, match="no answer of tier 1 has a score"):
        await run(Batches(silent=range(COUNT)))


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        ({}, set()),
        ({"options_hash": "b"}, {"tier-1"}),
        ({"large": "larger"}, {"tier-2-sample", "tier-2"}),
        ({"sample": 6}, {"tier-2-sample", "tier-2"}),
        ({"keep": 0.5}, {"tier-2"}),
        ({"regex": "([0-9]+)$"}, set()),
    ],
)
async def test_a_tier_has_another_hash_if_its_own_lines_differ(run, changed, folders):
    before, after = Batches(), Batches()
    await run(before)
    await run(after, **changed)
    assert {name for name in before.hashes if before.hashes[name] != after.hashes[name]} == folders


@pytest.mark.parametrize("raw", [b"no json\n", b"[]", b'"a"', b'{"body":[]}', b'{"body":"a"}', b"{}", b"7\n"])
def test_a_line_that_is_no_request_is_unchanged(raw):
    assert with_model(raw, "m") == raw


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_gets_the_model_of_its_tier(end):
    changed = with_model(b'{"custom_id":"a","body":{"model":"x","seed":1}}' + end, "m")
    assert changed == b'{"custom_id":"a","body":{"model":"m","seed":1}}' + end
