"""Settings in vLLM's own words: arguments of its engine and variables of its environment. No I/O."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.generator.engines.vllm_settings import VllmSettings
from services.runtime.errors import UserError

NGRAM: Final = (2, 4)
"""Shortest and longest run of tokens that n-gram drafting looks up in the text so far."""

GIB: Final = 1 << 30


def arguments(settings: VllmSettings, target: Path, *, gemma_drafts_gemma: bool) -> dict[str, Any]:
    """Keyword arguments of ``AsyncEngineArgs``; what is left to vLLM is left out.

    Args:
        settings: The operator's.
        target: Folder of the target.
        gemma_drafts_gemma: The drafter has sliding-window layers of its own: see ``vllm_hybrid_kv``.
    """
    speculation = drafting(settings)
    found: dict[str, Any] = {
        "model": str(target),
        "dtype": settings.vllm_dtype,
        "kv_cache_dtype": settings.vllm_kv_dtype,
        "load_format": settings.vllm_load_format,
        "tensor_parallel_size": settings.vllm_tensor_parallel,
        "enable_prefix_caching": settings.vllm_prefix_caching,
        "max_num_seqs": settings.vllm_max_seqs,
        "gpu_memory_utilization": settings.vllm_memory,
        "enforce_eager": settings.vllm_eager,
        "seed": settings.vllm_seed,
        "scheduling_policy": "priority",
        "language_model_only": True,  # without it Gemma 3 cannot use FlashAttention 3; we send text only
        "enable_log_requests": False,
    }
    optional: dict[str, Any] = {
        "quantization": _named(settings.vllm_quantization),
        "attention_config": _attention(settings),
        "max_model_len": settings.vllm_max_len,
        "max_num_batched_tokens": settings.vllm_batched_tokens,
        "kv_cache_memory_bytes": int(settings.vllm_kv_gib * GIB),
        "block_size": settings.vllm_block_size,
    }
    found |= {name: value for name, value in optional.items() if value}
    if settings.vllm_hybrid_kv == "off" or (settings.vllm_hybrid_kv == "auto" and gemma_drafts_gemma):
        found["disable_hybrid_kv_cache_manager"] = True
    if speculation is not None:
        found["speculative_config"] = speculation
        found["per_request_spec_decode_metrics"] = "summary"  # refused by vLLM when nothing is drafted
    return found


def drafting(settings: VllmSettings) -> dict[str, Any] | None:
    """``speculative_config``; None when nothing is drafted.

    Raises:
        UserError: The settings contradict each other.
    """
    method, schedule = settings.method(), settings.schedule()
    if method == "off":
        if schedule is not None:
            raise UserError(
                "RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH says how much is drafted, but nothing drafts: set"
                " RAILBUS_VLLM_METHOD or RAILBUS_VLLM_DRAFT"
            )
        return None
    if settings.draft_length() == 0:
        raise UserError("RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH never drafts: set RAILBUS_VLLM_METHOD=off instead")
    found: dict[str, Any] = {"method": method, "num_speculative_tokens": settings.draft_length()}
    if settings.vllm_draft is not None:
        found["model"] = str(settings.vllm_draft)
        quantization = _named(settings.vllm_draft_quantization)
        if quantization is not None:
            found["quantization"] = quantization
        found["draft_sample_method"] = settings.vllm_draft_sampling
        found["draft_tensor_parallel_size"] = settings.vllm_tensor_parallel if method == "draft_model" else 1
    if method == "ngram":
        found["prompt_lookup_min"], found["prompt_lookup_max"] = NGRAM
    if schedule is not None:
        found["num_speculative_tokens_per_batch_size"] = [list(each) for each in schedule]
    return found


def environment(settings: VllmSettings, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that vLLM reads when it is imported; what the operator set himself stays."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",  # it posts what it runs on to its makers otherwise
        "DO_NOT_TRACK": "1",
        "VLLM_CONFIGURE_LOGGING": "0",  # the process has a log already; prompts never go there
        "HF_HUB_OFFLINE": "1",  # models are folders: nothing is looked up, nothing is fetched
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.vllm_runner != "auto":
        wanted["VLLM_USE_V2_MODEL_RUNNER"] = "1" if settings.vllm_runner == "v2" else "0"
    return {name: value for name, value in wanted.items() if name not in env}


def always_drafts(settings: VllmSettings) -> int:
    """How much each step drafts, when that is known beforehand; 0 when it depends on text or batch."""
    if settings.method() in {"off", "ngram", "suffix"} or settings.schedule() is not None:
        return 0
    return settings.vllm_speculative_tokens


def _attention(settings: VllmSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings.vllm_attention_backend is not None:
        found["backend"] = settings.vllm_attention_backend
    if settings.vllm_flash_attention is not None:
        found["flash_attn_version"] = settings.vllm_flash_attention
    return found


def _named(quantization: str) -> str | None:
    return None if quantization == "none" else quantization
