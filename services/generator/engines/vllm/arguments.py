"""Convert the settings to vLLM's arguments and environment variables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from services.generator.engines.vllm.settings import VllmSettings
from services.runtime.errors import UserError

NGRAM_LENGTHS: Final = (2, 4)
"""Length in tokens of the shortest and of the longest n-gram for which the text so far is searched."""

GIB: Final = 1 << 30


def engine_arguments(settings: VllmSettings, target: Path, *, gemma_drafts_gemma: bool) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's ``AsyncEngineArgs``.

    Args:
        settings: The operator's settings.
        target: Folder of the target model.
        gemma_drafts_gemma: Whether the draft model is a Gemma model with sliding-window layers. The target is then
            assumed to be a Gemma model, too.
    """
    speculation = speculative_config(settings)
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
        "language_model_only": True,  # requests are text only; without this, Gemma 3 cannot use FlashAttention 3
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
    if settings.vllm_optimization != "auto":
        found["optimization_level"] = int(settings.vllm_optimization)
    if settings.vllm_hybrid_kv == "off" or (settings.vllm_hybrid_kv == "auto" and gemma_drafts_gemma):
        found["disable_hybrid_kv_cache_manager"] = True
    if speculation is not None:
        found["speculative_config"] = speculation
        found["per_request_spec_decode_metrics"] = "summary"  # only here, because vLLM refuses it without speculation
    return found


def speculative_config(settings: VllmSettings) -> dict[str, Any] | None:
    """Return vLLM's ``speculative_config``; None if speculation is off.

    Raises:
        UserError: The settings contradict each other.
    """
    method, schedule = settings.method(), settings.schedule()
    if method == "off":
        if schedule is not None:
            raise UserError(
                "RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH is set, but speculation is off: set RAILBUS_VLLM_METHOD or"
                " RAILBUS_VLLM_DRAFT too"
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
        found["prompt_lookup_min"], found["prompt_lookup_max"] = NGRAM_LENGTHS
    if schedule is not None:
        found["num_speculative_tokens_per_batch_size"] = [list(each) for each in schedule]
    return found


def engine_environment(settings: VllmSettings, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to set before vLLM is imported, without those that ``env`` sets already."""
    variables = {
        "VLLM_NO_USAGE_STATS": "1",  # without this, vLLM sends usage statistics to its developers
        "DO_NOT_TRACK": "1",
        "VLLM_CONFIGURE_LOGGING": "0",  # keep Railbus's own logging, which never contains prompts
        "HF_HUB_OFFLINE": "1",  # models are local folders, so no request to a model hub is needed
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.vllm_runner != "auto":
        variables["VLLM_USE_V2_MODEL_RUNNER"] = "1" if settings.vllm_runner == "v2" else "0"
    if settings.vllm_cpu_cores:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = settings.vllm_cpu_cores
    return {name: value for name, value in variables.items() if name not in env}


def fixed_draft_length(settings: VllmSettings) -> int:
    """Return the number of tokens drafted in every step; 0 if this number varies or if speculation is off."""
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
