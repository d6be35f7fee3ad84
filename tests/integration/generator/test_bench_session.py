"""Test that ``services.generator.bench.session`` answers each command on its input, and ends when the input ends."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

SIMULATED = {"RAILBUS_ENGINE": "simulated", "RAILBUS_SIM_TIME_SCALE": "0.05"}


def session(commands, **env):
    text = "".join(json.dumps(each) + "\n" for each in commands)
    done = subprocess.run(
        [sys.executable, "-m", "services.generator.bench.session"], input=text, capture_output=True, text=True,
        timeout=180, check=False, env={**os.environ, **env},
    )  # fmt: skip
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_session_answers_each_command_and_ends_with_its_input():
    loop = {"prompts": ["a", "b", "c"], "at_once": 2, "output": 5}
    done, said = session(
        [
            {"type": "load", "loop": loop},
            {"type": "answers", "questions": ["x", "y"], "output": 4},
            {"type": "scores", "texts": ["x"]},
        ],
        **SIMULATED,
    )
    assert done.returncode == 0, done.stderr
    ready, load, answers, scores = said
    assert (ready["engine"], ready["model"]) == ("simulated", "simulated")
    assert [sum(tokens for _, tokens in each["steps"]) for each in load["requests"]] == [5, 5, 5]
    assert load["wall_s"] > 0
    assert load["memory_mib"] > 0
    assert [len(text.split()) for text in answers["texts"]] == [4, 4]
    assert scores["scores"] is None


def test_what_is_no_command_is_the_callers_mistake():
    done, said = session([{"type": "dance"}], **SIMULATED)
    assert done.returncode == 2
    assert "no command" in done.stderr
    assert len(said) == 1


@pytest.mark.parametrize(
    ("cores", "said"), [("4095", "not there or not allowed"), ("1-0", "must be cores"), ("x", "must be")]
)
def test_cores_that_are_not_there(cores, said):
    done, _ = session([], **SIMULATED, RAILBUS_GENERATOR_CORES=cores)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.llama
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the embedded engine's wheel")
def test_a_real_model_finds_sentences_likelier_than_shuffled_words():
    sentence = "The capital of France is Paris, and the capital of Italy is Rome."
    shuffled = "Italy the of is is capital and Paris, Rome. The France capital of"
    done, said = session(
        [{"type": "scores", "texts": [sentence, shuffled, sentence]}], RAILBUS_ENGINE="llama", RAILBUS_LLAMA_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    first, other, again = said[1]["scores"]
    assert first == again
    assert 0 < first["nats"] / first["tokens"] < other["nats"] / other["tokens"]
