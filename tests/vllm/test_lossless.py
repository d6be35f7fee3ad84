"""At temperature 1 the engine draws from the target's distribution, drafted or not; a wrong sampler is noticed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.integration.generator.lab import ROOT
from tests.support.goodness import chi_square
from tests.vllm.draw import ARMS, GAMMA, PROMPT

DRAWS = 20_000
PATIENCE_S = 400


@pytest.fixture(scope="module")
def drawn(models):
    """Counts of the first three tokens by arm, shape (vocabulary,) * 3."""
    command = [sys.executable, "-m", "tests.vllm.draw", str(models["small"]), str(models["small_draft"]), str(DRAWS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    lines = [json.loads(line.removeprefix("DRAWN ")) for line in ended.stdout.splitlines() if line.startswith("DRAWN ")]
    return {line["arm"]: line for line in lines}


@pytest.fixture(scope="module")
def expected(models):
    """The target's probability of each first three tokens, by transformers: another implementation of the model."""
    import torch
    from transformers import Gemma3ForCausalLM

    model = Gemma3ForCausalLM.from_pretrained(models["small"], dtype=torch.float32).eval()
    size = model.config.vocab_size

    def following(contexts):
        with torch.no_grad():
            logits = model(torch.tensor(contexts)).logits[:, -1]
        return torch.softmax(logits.double(), dim=-1).numpy()

    first = following([PROMPT])[0]
    second = following([[*PROMPT, a] for a in range(size)])
    third = following([[*PROMPT, a, b] for a in range(size) for b in range(size)]).reshape(size, size, size)
    return first[:, None, None] * second[:, :, None] * third


@pytest.mark.parametrize("arm", ARMS)
def test_what_is_drawn_is_the_targets(arm, drawn, expected):
    counts = np.array(drawn[arm]["counts"]).reshape(expected.shape)
    assert counts.sum() == DRAWS
    values = []
    for places in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        others = tuple(place for place in range(3) if place not in places)
        values.append(chi_square(counts.sum(axis=others), expected.sum(axis=others))[2])
    print(
        f"{arm}: p = {', '.join(f'{value:.3g}' for value in values)};"
        f" {drawn[arm]['kept']} in {drawn[arm]['seconds']:.0f} s"
    )
    assert values[0] > 0.01, "the first token is never drafted"
    if arm == "wrong":
        assert max(values[1], values[3], values[5]) < 1e-6
    else:
        assert min(values[1:]) > 0.01 / 5, "five more looks at the same draws"
    kept = sum(value for name, value in drawn[arm]["kept"].items() if "accepted" in name)
    assert (kept > DRAWS * GAMMA / 20) == (arm != "plain"), "drafts were kept, so that there was something to get wrong"
