"""Test the prediction of a batch job's time from a sample: some of the job's prompts, run on the job's engine.

The tests compare the predicted times with the times of a simulated engine.
"""

import json
import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.physics.batches import BatchWork
from services.physics.catalogue.models import model
from services.planner.__main__ import main
from services.planner.batch.sample import measured_ways, sampled_engine, sampled_loop
from services.planner.batch.sample_file import divided, read_prompts
from services.planner.batch.sample_runner import run_loops
from services.planner.batch.ways import BatchJob
from services.planner.bench.results import RequestResult, SampleResult, TokenCounts
from services.planner.commands import batch
from services.runtime.errors import UserError
from tests.support.examples import examples


class Engine:
    """A simulated engine in virtual time.

    A step takes ``fixed`` ms, plus ``each`` ms for each answer that already has a token, plus ``token`` ms for each
    prompt token that the step prefills. A prompt is given as its number of tokens, or as a pair: its number of tokens
    and the number of tokens of its answer.
    """

    def __init__(self, fixed, each, token, length=20, cached=0):
        self.fixed, self.each, self.token, self.length, self.cached = fixed, each, token, length, cached

    def run(self, at_once, prompts):
        now, coming, running, found = 0.0, list(prompts), [], []
        while coming or running:
            while coming and len(running) < at_once:
                prompt, length = self._lengths(coming.pop(0))
                running.append({"due": now, "new": prompt - self.cached, "steps": [], "length": length})
            decoding = [one for one in running if one["steps"]]
            starting = [one for one in running if not one["steps"]]
            now += self.fixed + self.each * len(decoding) + self.token * sum(one["new"] for one in starting)
            for one in running:
                one["steps"].append((now - one["due"], 1))
            for one in [one for one in running if len(one["steps"]) == one["length"]]:
                running.remove(one)
                usage = TokenCounts(one["new"] + self.cached, one["length"], self.cached)
                found.append(RequestResult(one["due"], tuple(one["steps"]), now - one["due"], usage))
        return SampleResult(at_once, self.length, tuple(found))

    def _lengths(self, prompt):
        return prompt if isinstance(prompt, tuple) else (prompt, self.length)


PROMPTS = [80 + 7 * (number % 12) for number in range(200)]


def calibrated(engine, at_once=8):
    return sampled_engine([engine.run(number, texts) for number, texts in divided(PROMPTS, at_once)])


@settings(max_examples=examples(10), deadline=None)
@given(
    st.floats(1, 30), st.floats(0, 2), st.floats(0.001, 0.3), st.integers(5, 30), st.sampled_from([2, 3, 4, 8, 16])
)  # fmt: skip
def test_an_engine_with_known_times_is_recovered(fixed, each, token, length, at_once):
    engine = Engine(fixed, each, token, length)
    found = calibrated(engine, at_once)
    for number in {1, max(2, at_once // 2), at_once}:
        ran = sampled_loop(engine.run(number, PROMPTS[: 12 * number])).each_ms
        said = found.hours(1_000, number, found.output(length))
        assert said.value * 3.6e6 / 1_000 == pytest.approx(ran, rel=0.1)
        assert said.low < said.value < said.high


def test_other_lengths_are_predicted_and_the_ranking_is_right():
    engine = Engine(10, 0.4, 0.03, 40)
    found, half = calibrated(engine), Engine(10, 0.4, 0.03, 20)
    pairs = []
    for number in (8, 4, 1):
        for of, length in ((engine, 40), (half, 20)):
            ran = sampled_loop(of.run(number, PROMPTS)).each_ms
            said = found.hours(1, number, found.output(length)).value * 3.6e6
            assert said == pytest.approx(ran, rel=0.1)
            pairs.append((said, ran))
    assert sorted(pairs) == sorted(pairs, key=lambda pair: pair[1])


def in_pieces(result, size):
    """Return ``result`` as if the server had sent the first token alone, and then pieces of ``size`` tokens.

    ``steps`` counts each piece as one token. Only ``usage`` has the true number of tokens.
    """
    return SampleResult(
        result.at_once, result.output,
        tuple(
            RequestResult(
                each.due_ms, (each.steps[0], *((at_ms, 1) for at_ms, _ in each.steps[size::size])), each.total_ms,
                each.usage,
            )
            for each in result.requests
        ),
    )  # fmt: skip


def test_tokens_that_come_in_pieces_are_counted():
    engine, half = Engine(10, 0.4, 0.03, 41), Engine(10, 0.4, 0.03, 21)
    found = sampled_engine([in_pieces(engine.run(number, texts), 4) for number, texts in divided(PROMPTS, 8)])
    assert found.output(1_000) == 41
    assert found.output(21) == 21
    for number in (8, 3, 1):
        for of, length in ((engine, 41), (half, 21)):
            ran = sampled_loop(of.run(number, PROMPTS)).each_ms
            assert found.hours(1, number, found.output(length)).value * 3.6e6 == pytest.approx(ran, rel=0.1)


def test_a_prompt_that_is_not_cached_costs_more():
    found = calibrated(Engine(10, 0.4, 0.05, 20, cached=60))
    job = BatchJob(work=BatchWork(requests=100, shared=60, own=60, output=20), model=model("gemma-3-12b"), gpu=None)
    ways = {way.name: way for way in measured_ways(job, found, "e", 1.0, 2.0)}
    assert len(ways) == 7
    usual, cold = ways["e, 8 at once"], ways["e, 8 at once, prefix not cached"]
    ran = sampled_loop(Engine(10, 0.4, 0.05, 20).run(8, PROMPTS)).each_ms
    assert cold.hours.value * 3.6e6 / 100 == pytest.approx(ran, rel=0.03)
    assert cold.hours.value > 1.05 * usual.hours.value
    assert usual.money.value == 2 * usual.hours.value
    assert usual.hours.high / usual.hours.value < cold.hours.high / cold.hours.value


@pytest.mark.parametrize("lengths", [range(60, 260), range(300, 100, -1)])
def test_prompts_sorted_by_length_are_no_cached_prefix(lengths):
    engine = Engine(10, 0.4, 0.05, 12)
    found = sampled_engine([engine.run(number, texts) for number, texts in divided(list(lengths), 4)])
    assert found.prompt == found.new


@pytest.mark.parametrize("longer", [30, 1])
def test_answers_of_one_token_count(longer):
    prompts = [(150, 1 if number % 5 < 2 else longer) for number in range(200)]
    engine = Engine(10, 0.4, 0.05)
    found = sampled_engine([engine.run(number, texts) for number, texts in divided(prompts, 4)])
    for number in (1, 2, 4):
        result = engine.run(number, prompts)
        took = max(each.due_ms + each.total_ms for each in result.requests)
        said = found.hours(1, number, found.output(1_000)).value * 3.6e6
        assert said == pytest.approx(took / 200, rel=0.1)


def test_answers_in_one_piece_are_refused():
    result = Engine(10, 1, 0.1).run(1, PROMPTS[:16])
    whole = [RequestResult(r.due_ms, ((r.total_ms, 20),), r.total_ms, r.usage) for r in result.requests]
    with pytest.raises(ValueError, match="came in one piece"):
        sampled_loop(SampleResult(1, 20, tuple(whole)))


def test_a_machine_whose_speed_changes_is_believed_where_it_was_measured():
    slow, fast = Engine(30, 0.4, 0.9, 6), Engine(10, 0.4, 0.1, 6)
    loops = divided(PROMPTS, 2)
    found = sampled_engine([{1: slow, 2: fast}[number].run(number, texts) for number, texts in loops])
    for number, engine in ((1, slow), (2, fast)):
        ran = sampled_loop(engine.run(number, PROMPTS)).each_ms
        assert found.hours(1, number, 6).value * 3.6e6 == pytest.approx(ran, rel=0.05)
        assert found.step_ms(number) >= slow.fixed


def test_too_few_answers_are_refused():
    result = Engine(10, 1, 0.1).run(8, PROMPTS[:16])
    with pytest.raises(ValueError, match="too few to plan by"):
        sampled_loop(result)
    with pytest.raises(ValueError, match="one at a time"):
        sampled_engine([Engine(10, 1, 0.1).run(8, PROMPTS)])
    with pytest.raises(UserError, match="too few for 16 at once"):
        divided(["x"] * 40, 16)


@pytest.mark.parametrize("at_once", [2, 3, 4, 8, 32])
def test_every_prompt_is_in_one_loop(at_once):
    loops = divided(list(map(str, range(200))), at_once)
    assert sorted(int(text) for _, texts in loops for text in texts) == list(range(200))
    numbers = [number for number, _ in loops]
    assert numbers[0] == 1
    assert numbers == numbers[::-1], "what is run before the full loop is run after it, too"
    assert max(numbers) == at_once


def test_a_few_prompts_are_not_divided_further():
    assert [number for number, _ in divided(["x"] * 50, 8)] == [1, 3, 8]


def test_a_machine_that_becomes_slower_is_averaged():
    """If the machine becomes slower during the sample, the prediction assumes its mean speed.

    The sample has five closed loops, with 1, 3, 8, 3 and 1 requests at a time. The machine is slower in each loop
    than in the one before.
    """
    loops = divided(PROMPTS, 8)
    speeds = [1.0, 1.1, 1.2, 1.3, 1.4]
    results = [Engine(10 * by, 0.4 * by, 0.05 * by).run(*loop) for by, loop in zip(speeds, loops, strict=True)]
    found, mean = sampled_engine(results), Engine(12, 0.48, 0.06)
    for number in (1, 3, 8):
        ran = sampled_loop(mean.run(number, PROMPTS)).each_ms
        said = found.hours(1, number, found.output(20))
        assert said.value * 3.6e6 == pytest.approx(ran, rel=0.04)
        assert said.low <= ran / 3.6e6 <= said.high


def test_a_loop_that_the_limit_cut_does_not_count_if_there_is_another():
    engine = Engine(10, 0.4, 0.05)
    whole = [engine.run(number, texts) for number, texts in divided(PROMPTS, 8)]
    cut = [*whole[:-1], engine.run(1, PROMPTS[:2])]
    assert sampled_engine(cut).hours(1, 1, 20).value == pytest.approx(
        sampled_engine(whole).hours(1, 1, 20).value, rel=0.02
    )


def test_prompts_are_read_in_every_form(tmp_path):
    path = tmp_path / "prompts.jsonl"
    message = {"messages": [{"role": "system", "content": "A"}, {"role": "user", "content": [{"text": "B"}]}]}
    lines = ['{"prompt": "one"}', "two words", json.dumps({"custom_id": "3", "body": message}), ""]
    path.write_text("\n".join(lines))
    assert read_prompts(path, 10) == ["one", "two words", "A\n\nB"]
    path.write_text("\n".join(str(number) for number in range(1_000)))
    assert read_prompts(path, 4) == ["0", "250", "500", "750"]


def test_a_line_ends_only_at_a_line_break(tmp_path):
    path = tmp_path / "prompts.jsonl"
    parts = [{"type": "text", "text": "C"}, {"type": "text", "text": None}]
    prompts = [{"prompt": "A\u2028B\x85"}, {"messages": [{"role": "user", "content": parts}]}]
    path.write_text("\r\n".join(json.dumps(each, ensure_ascii=False) for each in prompts), encoding="utf-8-sig")
    assert read_prompts(path, 10) == ["A\u2028B\x85", "C"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no prompts"),
        ("a\n\n{oops", "line 3 is not"),
        ('{"body": {}}', "line 1 has neither a prompt nor messages"),
        ("a\n{oops", "line 2 is not"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, capsys, text, sentence):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    assert main(["batch", "--sample", str(path)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("flags", [("--sample-size", "3"), ("--at-once", "1"), ("--limit-s", "0")])
def test_a_bound_of_the_sample_is_kept(tmp_path, capsys, flags):
    assert main(["batch", "--sample", str(tmp_path / "x"), *flags]) == 2
    assert "must be within" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--gpu", "h100"), "the prices have no [[owned]] entry for h100"),
        (("--plot", "plan.pdf"), "--plot plan.pdf: the file must end in .png or .svg"),
        (("--output", "1"), "--output 1: must be within 2 and 4096 with --sample"),
        (("--output", "4097"), "--output 4097: must be within 2 and 4096 with --sample"),
    ],
)
def test_a_mistake_is_told_before_the_sample_runs(tmp_path, capsys, monkeypatch, flags, sentence):
    path = tmp_path / "prompts.txt"
    path.write_text("Hello\n" * 60)
    monkeypatch.setattr(batch, "run_loops", lambda *_, **__: pytest.fail("the sample ran"))
    assert main(["batch", "--sample", str(path), *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"railbus plan: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_sample_that_is_told_to_end_ends_its_engine(tmp_path, monkeypatch):
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\ncat > /dev/null\nkill -TERM $PPID\nexec sleep 20\n")
    engine.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(engine))
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # else a SIGTERM could end the tests
    try:
        with pytest.raises(SystemExit) as ended:
            run_loops("simulated", [(1, 8, ["Hello"])], limit_s=1, request_s=1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 130
