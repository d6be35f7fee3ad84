import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from services.runtime.errors import UserError

Method = Literal["auto", "off", "draft_model", "ngram", "suffix", "medusa", "eagle", "eagle3", "mtp", "dflash"]

NEEDS_DRAFT: Final[frozenset[Method]] = frozenset({"draft_model", "medusa", "eagle", "eagle3", "dflash"})
"""Methods that need ``vllm_draft``, because their drafter has separate weights. The weights of MTP heads are part of
the target's, and the methods n-gram and suffix have no weights."""

_RANGE: Final = re.compile(r"(\d{1,6})-(\d{1,6}):(\d{1,2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of the engine ``vllm``. ``infra/profiles`` has complete settings for H100, H200, A100 and CPU.

    Attributes:
        model: Name of the model in requests; ``default`` works too. If not set, it is the name of the model's folder.
        model_path: Folder of the target model, with ``config.json``, tokenizer and safetensors files.
        vllm_device: ``gpu`` refuses to start without a GPU. ``cpu`` requires vLLM's CPU build. ``auto`` uses the device
            that the installed vLLM was built for.
        vllm_draft: Folder of the draft model.
        vllm_method: Method of drafting. ``auto`` means ``draft_model`` if ``vllm_draft`` is set, otherwise ``off``.
        vllm_speculative_tokens: Number of tokens drafted in a step.
        vllm_speculative_tokens_by_batch: Number of tokens drafted in a step, for each range of batch sizes, such as
            ``1-8:5 9-32:3 33-256:0``. If set, it replaces ``vllm_speculative_tokens``.
        vllm_draft_sampling: With ``greedy``, the draft model proposes the likeliest token. With ``probabilistic``, it
            samples. Neither changes the distribution of the answers.
        vllm_quantization: Quantisation of the target's linear layers, such as ``fp8``. ``none`` keeps the stored
            weights.
        vllm_draft_quantization: Quantisation of the draft model's linear layers.
        vllm_dtype: Data type of activations, and of weights that are not quantised.
        vllm_kv_dtype: Data type of the KV cache, such as ``fp8``.
        vllm_attention_backend: vLLM's attention backend, such as ``FLASH_ATTN``. If not set, vLLM chooses.
        vllm_flash_attention: Version of FlashAttention. If not set, vLLM chooses.
        vllm_tensor_parallel: Number of GPUs over which each layer of the model is split.
        vllm_prefix_caching: Whether the KV cache of a prompt is kept for later prompts with the same beginning.
        vllm_max_len: Maximum number of tokens of prompt and answer together. 0 means the model's own limit.
        vllm_max_seqs: Maximum number of answers in a batch.
        vllm_batched_tokens: Maximum number of tokens in a step. It limits how long a prefill can delay other answers.
            0 lets vLLM choose.
        vllm_memory: Share of the GPU's memory that vLLM uses for weights, activations and KV cache.
        vllm_kv_gib: Size of the KV cache in GiB. 0 means the part of ``RAILBUS_VLLM_MEMORY`` that
            weights and activations do not need. On a CPU, 0 means 1 GiB.
        vllm_block_size: Number of tokens in a block of the KV cache. 0 lets vLLM choose.
        vllm_runner: Version of vLLM's model runner. The two versions support different kinds of draft models.
        vllm_hybrid_kv: Whether sliding-window layers get smaller caches than other layers. ``auto`` means ``off``
            with a Gemma draft model that has such layers, otherwise ``on``.
        vllm_eager: Whether to run without compilation and CUDA graphs. The engine then starts sooner and is slower.
        vllm_optimization: vLLM's optimisation level. 0 starts soonest, and 3 compiles most. ``auto`` lets vLLM choose.
        vllm_cpu_cores: CPU cores for the threads of vLLM's CPU build, such as ``0-1``. If not set, vLLM chooses.
        vllm_load_format: Format of the weights. ``dummy`` means random weights, to measure speed without a model.
        vllm_seed: Seed for requests without a seed.
        vllm_start_timeout_s: Maximum number of seconds until the engine is ready.
    """

    model: str | None = field(default=None, metadata={"help": "name of the model"})
    model_path: Path | None = field(default=None, metadata={"help": "folder of the target model"})
    vllm_device: Literal["auto", "gpu", "cpu"] = field(default="auto", metadata={"help": "device that computes"})
    vllm_draft: Path | None = field(default=None, metadata={"help": "folder of the draft model"})
    vllm_method: Method = field(default="auto", metadata={"help": "how tokens are drafted"})
    vllm_speculative_tokens: int = field(
        default=4, metadata={"help": "number of tokens drafted in a step", "ge": 1, "le": 16}
    )
    vllm_speculative_tokens_by_batch: str = field(
        default="", metadata={"help": "number of drafted tokens by batch size, such as 1-8:5 9-32:3 33-256:0"}
    )
    vllm_draft_sampling: Literal["greedy", "probabilistic"] = field(
        default="greedy", metadata={"help": "how the draft model samples"}
    )
    vllm_quantization: str = field(default="none", metadata={"help": "quantisation of the target model, such as fp8"})
    vllm_draft_quantization: str = field(
        default="none", metadata={"help": "quantisation of the draft model, such as fp8"}
    )
    vllm_dtype: Literal["auto", "bfloat16", "float16", "float32"] = field(
        default="auto", metadata={"help": "type of unquantised weights and activations"}
    )
    vllm_kv_dtype: str = field(default="auto", metadata={"help": "type of the KV cache, such as fp8"})
    vllm_attention_backend: str | None = field(default=None, metadata={"help": "attention backend, such as FLASH_ATTN"})
    vllm_flash_attention: Literal[2, 3, 4] | None = field(default=None, metadata={"help": "version of FlashAttention"})
    vllm_tensor_parallel: int = field(
        default=1, metadata={"help": "number of GPUs for the target model", "ge": 1, "le": 64}
    )
    vllm_prefix_caching: bool = field(default=True, metadata={"help": "reuse the KV cache of common prefixes"})
    vllm_max_len: int = field(
        default=0,
        metadata={
            "help": "maximum number of tokens of prompt and answer together, 0 = the model's limit",
            "ge": 0,
            "le": 10_000_000,
        },
    )
    vllm_max_seqs: int = field(
        default=64, metadata={"help": "maximum number of answers in a batch", "ge": 1, "le": 4_096}
    )
    vllm_batched_tokens: int = field(
        default=0, metadata={"help": "maximum number of tokens in a step, 0 = vLLM's choice", "ge": 0, "le": 1_048_576}
    )
    vllm_memory: float = field(
        default=0.9, metadata={"help": "share of the GPU's memory that vLLM uses", "ge": 0.05, "le": 0.99}
    )
    vllm_kv_gib: float = field(
        default=0.0,
        metadata={"help": "size of the KV cache in GiB, 0 = what RAILBUS_VLLM_MEMORY leaves", "ge": 0, "le": 10_000},
    )
    vllm_block_size: int = field(
        default=0,
        metadata={"help": "number of tokens in a block of the KV cache, 0 = vLLM's choice", "ge": 0, "le": 1_024},
    )
    vllm_runner: Literal["auto", "v1", "v2"] = field(default="auto", metadata={"help": "vLLM's model runner"})
    vllm_hybrid_kv: Literal["auto", "on", "off"] = field(
        default="auto", metadata={"help": "smaller caches for sliding-window layers"}
    )
    vllm_eager: bool = field(default=False, metadata={"help": "run without compilation and CUDA graphs"})
    vllm_optimization: Literal["auto", "0", "1", "2", "3"] = field(
        default="auto", metadata={"help": "how much is compiled and fused"}
    )
    vllm_cpu_cores: str = field(default="", metadata={"help": "cores of the CPU build's threads, such as 0-1"})
    vllm_load_format: Literal["auto", "safetensors", "dummy"] = field(
        default="auto", metadata={"help": "format of the weights; dummy = random ones"}
    )
    vllm_seed: int = field(default=0, metadata={"help": "seed for requests without one", "ge": 0, "le": 2**31 - 1})
    vllm_start_timeout_s: float = field(
        default=1_200.0, metadata={"help": "maximum time until the engine is ready", "ge": 1, "le": 7_200}
    )

    def method(self) -> Method:
        """Return ``vllm_method``. For ``auto``, return ``draft_model`` if ``vllm_draft`` is set, and ``off`` if not.

        Raises:
            UserError: The method needs ``vllm_draft``, which is not set. Or ``vllm_draft`` is set, but the method does
                not use it.
        """
        method = self.vllm_method
        if method == "auto":
            return "draft_model" if self.vllm_draft is not None else "off"
        if method in NEEDS_DRAFT and self.vllm_draft is None:
            raise UserError(f"RAILBUS_VLLM_METHOD={method} needs RAILBUS_VLLM_DRAFT, the folder of its weights")
        if method not in NEEDS_DRAFT and self.vllm_draft is not None:
            raise UserError(f"RAILBUS_VLLM_METHOD={method} does not use RAILBUS_VLLM_DRAFT: remove one of the two")
        return method

    def schedule(self) -> list[tuple[int, int, int]] | None:
        """Return ranges of batch sizes, each as (smallest, largest, drafted tokens); None if there are no ranges.

        Raises:
            UserError: ``vllm_speculative_tokens_by_batch`` is invalid.
        """
        text = self.vllm_speculative_tokens_by_batch
        if not text:
            return None
        found = [_RANGE.fullmatch(part) for part in text.replace(",", " ").split()]
        ranges = [(int(each[1]), int(each[2]), int(each[3])) for each in found if each is not None]
        starts = [1, *(end + 1 for _, end, _ in ranges[:-1])]
        if not ranges or len(ranges) != len(found) or [start for start, _, _ in ranges] != starts:
            raise UserError(
                f"RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH={text!r}: must be adjacent ranges from 1 on,"
                " such as '1-8:5 9-32:3 33-256:0'"
            )
        if any(end < start for start, end, _ in ranges) or max(gamma for *_, gamma in ranges) > 16:
            raise UserError(
                f"RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH={text!r}: a range ends before it starts, or drafts more than"
                " 16 tokens"
            )
        return ranges

    def draft_length(self) -> int:
        schedule = self.schedule()
        return self.vllm_speculative_tokens if schedule is None else max(gamma for *_, gamma in schedule)
