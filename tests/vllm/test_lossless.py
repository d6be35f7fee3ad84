"""Test that vLLM samples from the target's distribution at temperature 1, with and without drafting.

Every token is sampled in a different context, so the tokens cannot be compared with one distribution. Therefore each
token is mapped to its position in the distribution of its context: F(token - 1) + U p(token). p is the distribution of
the target, F is the cumulative p in some order of the vocabulary, and U is uniform in [0, 1). If the order does not
depend on the sampled token, the position is uniform if and only if the token was sampled from p.

The order is by descending q/p, where q is the distribution of the draft. So a sampler that favours the draft's tokens
gives too many low positions. The arm ``wrong`` is such a sampler, and the test must notice it.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.support.goodness_of_fit import chi_square
from tests.support.processes import ROOT
from tests.vllm.draw import ARMS, GAMMA, PROMPT, TOKENS

SEQUENCES = 420
BINS = 40
PATIENCE_S = 400

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def drawn(models):
    """Run ``tests.vllm.draw``. Return the output of each arm."""
    folders = str(models["small"]), str(models["small_draft"])
    command = [sys.executable, "-m", "tests.vllm.draw", *folders, str(SEQUENCES)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr[-3_000:]
    lines = [json.loads(line.removeprefix("DRAWN ")) for line in ended.stdout.splitlines() if line.startswith("DRAWN ")]
    return {line["arm"]: line for line in lines}


def probabilities(folder, tokens):
    """Compute each vocabulary token's probability at each position of ``tokens`` with Hugging Face transformers."""
    import torch
    from transformers import Gemma3ForCausalLM

    model = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    contexts = np.concatenate([np.tile(PROMPT, (len(tokens), 1)), tokens], axis=1)
    with torch.no_grad():
        logits = model(torch.tensor(contexts)).logits[:, len(PROMPT) - 1 : -1]
    return torch.softmax(logits.double(), dim=-1).numpy()


def places(tokens, p, q, rng):
    """Return each token's position in [0, 1), as this module's docstring describes it."""
    order = np.argsort(-q / p, axis=-1, kind="stable")
    rank = np.argmax(order == tokens[..., None], axis=-1)[..., None]
    sums = np.cumsum(np.take_along_axis(p, order, axis=-1), axis=-1)
    own = np.take_along_axis(p, tokens[..., None], axis=-1)
    return (np.take_along_axis(sums, rank, axis=-1) - own * rng.random(own.shape))[..., 0]


@pytest.mark.parametrize("arm", ARMS)
def test_what_is_drawn_is_the_targets(arm, drawn, models):
    tokens = np.array(drawn[arm]["tokens"])
    assert tokens.shape == (SEQUENCES, TOKENS)
    assert tokens.size >= 20_000
    p, q = (probabilities(models[name], tokens) for name in ("small", "small_draft"))
    counts, _ = np.histogram(places(tokens, p, q, np.random.default_rng(7)), bins=BINS, range=(0, 1))
    statistic, freedom, chance = chi_square(counts, np.full(BINS, 1 / BINS))
    drafts = drawn[arm]["drafts"]
    print(
        f"{arm}: {tokens.size} draws, chi-square {statistic:.0f} with {freedom} degrees of freedom, p = {chance:.2g};"
        f" {drafts['accepted']:.0f} of {drafts['draft']:.0f} drafts kept; {drawn[arm]['seconds']:.0f} s"
    )
    if arm == "wrong":
        assert chance < 1e-6
    else:
        assert chance > 0.01
    if arm == "plain":
        assert drafts["draft"] == 0
    else:
        assert drafts["accepted"] > GAMMA * tokens.size / 40, "there was something to get wrong"


def test_the_patched_kernel_is_still_broken_in_vllm():
    """vLLM's CPU kernel still writes the expanded temperatures into a copy that is never read.

    Railbus's ``expand_batch_to_tokens``, which replaces vLLM's function, returns the right values.
    """
    import torch
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils

    from services.generator.engines.vllm.patches import expand_batch_to_tokens

    current_platform.import_kernels()
    temperatures, ends = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 3], dtype=torch.int32)
    delivered = torch.full((3,), 77.0)
    cpu_triton_utils._expand_kernel_impl(delivered, temperatures, ends, 0, 1)
    assert delivered.tolist() == [77.0] * 3, "vLLM has fixed it: services/generator/engines/vllm/patches.py can go"
    assert expand_batch_to_tokens(temperatures, ends, 3, 0, 1).tolist() == [0.5, 0.5, 1.0]
    assert expand_batch_to_tokens(torch.tensor([5, 7]), torch.tensor([1, 3]), 3).tolist() == [5, 7, 7], (
        "top-k, and nothing to replace"
    )
