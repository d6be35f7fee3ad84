"""``python -m tests.vllm.draw TARGET DRAFT SEQUENCES``: sample tokens at temperature 1, with and without drafting.

For each arm, print a line: ``DRAWN`` and a JSON object. The arm ``wrong`` replaces vLLM's sampler by a wrong one.
To make this replacement possible, vLLM runs in the same process as this program.
"""

import json
import os
import sys
import time

from services.generator.engines.vllm.patches import PATCHED_WORKER

GAMMA = 3
TOKENS = 48
PROMPT = [2, 4, 6, 9, 11, 5, 4, 7]
AT_ONCE = 64

ARMS = {
    "plain": None,
    "greedy drafts": {"draft_sample_method": "greedy"},
    "drawn drafts": {"draft_sample_method": "probabilistic"},
    "wrong": {"draft_sample_method": "probabilistic"},
}


def draw(target, draft, arm, sequences, seed):
    """Sample tokens. Return the tokens of each sequence, and the numbers of drafted and of accepted tokens."""
    from vllm import LLM, SamplingParams, _custom_ops

    # oneDNN compiles for each number of tokens, and here almost every step has a different number.
    _custom_ops._supports_onednn = False
    speculation = ARMS[arm]
    if speculation is not None:
        speculation = {"method": "draft_model", "model": draft, "num_speculative_tokens": GAMMA} | speculation
    llm = LLM(
        model=target, dtype="float32", kv_cache_memory_bytes=1 << 27, block_size=32, enforce_eager=True, seed=seed,
        max_model_len=64, max_num_seqs=AT_ONCE, disable_hybrid_kv_cache_manager=True, language_model_only=True,
        speculative_config=speculation, disable_log_stats=False, enable_prefix_caching=True,
        worker_extension_cls=PATCHED_WORKER,
    )  # fmt: skip
    params = SamplingParams(temperature=1.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": PROMPT}] * sequences, params, use_tqdm=False)
    told = {each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}
    drafts = {name: told.get(f"vllm:spec_decode_num_{name}_tokens", 0) for name in ("draft", "accepted")}
    return [list(output.outputs[0].token_ids) for output in outputs], drafts


def spoil():
    """Make vLLM's sampler wrong: replace each rejected draft token by a sample from the target's distribution p.

    The correct replacement is a sample from the normalised positive part of p - q, where q is the draft's distribution.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    def from_the_target(max_len, counts, ends, drafted, draft_probs, target_probs, *rest):
        return torch.multinomial(target_probs.nan_to_num() + 1e-12, 1).flatten().to(drafted.dtype)

    rejection_sampler.sample_recovered_tokens = from_the_target


def main():
    target, draft, sequences = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CONFIGURE_LOGGING": "0"}
    for seed, arm in enumerate(ARMS):
        if arm == "wrong":
            spoil()
        begun = time.monotonic()
        tokens, drafts = draw(target, draft, arm, sequences, seed)
        line = {"arm": arm, "tokens": tokens, "drafts": drafts, "seconds": time.monotonic() - begun}
        print("DRAWN " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
