"""What the engine ``vllm`` loads, how it drafts, and how much it may take."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from services.runtime.errors import UserError

Method = Literal["auto", "off", "draft_model", "ngram", "suffix", "medusa", "eagle", "eagle3", "mtp", "dflash"]

NEEDS_DRAFT: Final[frozenset[Method]] = frozenset({"draft_model", "medusa", "eagle", "eagle3", "dflash"})
"""Methods whose drafter has weights of its own. MTP heads stand in the target's; n-gram and suffix have none."""

_RANGE: Final = re.compile(r"(\d{1,6})-(\d{1,6}):(\d{1,2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """The target, its drafter and their machine. ``infra/profiles`` has a tried set for each kind of machine.

    Attributes:
        model: The name it answers to besides ``default``; None takes the folder's name.
        model_path: Folder of the target: ``config.json``, tokenizer, safetensors.
        vllm_device: ``gpu`` refuses to start without one; ``auto`` takes what this build of vLLM is for.
        vllm_draft: Folder of the drafter.
        vllm_method: How tokens are drafted; ``auto`` is ``draft_model`` when there is a drafter, else ``off``.
        vllm_speculative_tokens: Tokens drafted in a step, gamma.
        vllm_speculative_tokens_by_batch: ``1-8:5 9-32:3 33-256:0``: gamma for each size of the batch.
        vllm_draft_sampling: ``greedy`` drafts the likeliest token, ``probabilistic`` draws; both are lossless.
        vllm_quantization: Of the target's linear layers; ``none`` leaves them as they are stored.
        vllm_draft_quantization: Of the drafter's: it does not inherit the target's.
        vllm_dtype: Of weights that are not quantised, and of activations.
        vllm_kv_dtype: Of the KV cache.
        vllm_attention_backend: Such as ``FLASH_ATTN``; None lets vLLM choose.
        vllm_flash_attention: Version of FlashAttention; None lets vLLM choose.
        vllm_tensor_parallel: GPUs that share the target's layers.
        vllm_prefix_caching: Keep the KV cache of prompts for prompts that begin alike.
        vllm_max_len: Tokens of prompt and answer; 0 takes the model's own limit.
        vllm_max_seqs: Answers in a batch, at most.
        vllm_batched_tokens: Tokens in a step, at most; 0 lets vLLM choose. It bounds how long a prefill delays others.
        vllm_memory: Share of the GPU's memory for weights, activations and KV cache.
        vllm_kv_gib: GiB for the KV cache; 0 takes what ``vllm_memory`` leaves. On a CPU it must be said.
        vllm_block_size: Tokens in a block of the KV cache; 0 lets vLLM choose.
        vllm_runner: Which of vLLM's model runners; they differ in what they can do for draft models.
        vllm_hybrid_kv: Give sliding-window layers smaller caches; ``auto`` unless a Gemma draft model forbids it.
        vllm_eager: Run without compilation and CUDA graphs: starts sooner, answers later.
        vllm_load_format: ``dummy`` makes up weights, to measure speed without having any.
        vllm_seed: Of everything that is drawn without a seed of its own.
        vllm_start_timeout_s: Longest time from start to ready, in seconds; compiling a large model takes minutes.
    """

    model: str | None = field(default=None, metadata={"help": "name the model answers to"})
    model_path: Path | None = field(default=None, metadata={"help": "folder of the target model"})
    vllm_device: Literal["auto", "gpu", "cpu"] = field(default="auto", metadata={"help": "what computes"})
    vllm_draft: Path | None = field(default=None, metadata={"help": "folder of the draft model"})
    vllm_method: Method = field(default="auto", metadata={"help": "how tokens are drafted"})
    vllm_speculative_tokens: int = field(default=4, metadata={"help": "tokens drafted", "ge": 1, "le": 16})
    vllm_speculative_tokens_by_batch: str = field(default="", metadata={"help": "such as 1-8:5 9-32:3 33-256:0"})
    vllm_draft_sampling: Literal["greedy", "probabilistic"] = field(
        default="greedy", metadata={"help": "how the draft model picks its tokens"}
    )
    vllm_quantization: str = field(default="none", metadata={"help": "of the target, such as fp8"})
    vllm_draft_quantization: str = field(default="none", metadata={"help": "of the draft model, such as fp8"})
    vllm_dtype: Literal["auto", "bfloat16", "float16", "float32"] = field(
        default="auto", metadata={"help": "of what is not quantised"}
    )
    vllm_kv_dtype: str = field(default="auto", metadata={"help": "of the KV cache, such as fp8"})
    vllm_attention_backend: str | None = field(default=None, metadata={"help": "such as FLASH_ATTN"})
    vllm_flash_attention: Literal[2, 3, 4] | None = field(default=None, metadata={"help": "FlashAttention's version"})
    vllm_tensor_parallel: int = field(default=1, metadata={"help": "GPUs for the target", "ge": 1, "le": 64})
    vllm_prefix_caching: bool = field(default=True, metadata={"help": "reuse the KV cache of equal beginnings"})
    vllm_max_len: int = field(
        default=0, metadata={"help": "tokens of prompt and answer, 0 = the model's", "ge": 0, "le": 10_000_000}
    )
    vllm_max_seqs: int = field(default=64, metadata={"help": "answers in a batch", "ge": 1, "le": 4_096})
    vllm_batched_tokens: int = field(
        default=0, metadata={"help": "tokens in a step, 0 = vLLM's choice", "ge": 0, "le": 1_048_576}
    )
    vllm_memory: float = field(default=0.9, metadata={"help": "share of the GPU's memory", "ge": 0.05, "le": 0.99})
    vllm_kv_gib: float = field(default=0.0, metadata={"help": "GiB for the KV cache", "ge": 0, "le": 10_000})
    vllm_block_size: int = field(default=0, metadata={"help": "tokens in a KV block", "ge": 0, "le": 1_024})
    vllm_runner: Literal["auto", "v1", "v2"] = field(default="auto", metadata={"help": "vLLM's model runner"})
    vllm_hybrid_kv: Literal["auto", "on", "off"] = field(
        default="auto", metadata={"help": "smaller caches for sliding-window layers"}
    )
    vllm_eager: bool = field(default=False, metadata={"help": "neither compile nor capture graphs"})
    vllm_load_format: Literal["auto", "safetensors", "dummy"] = field(
        default="auto", metadata={"help": "dummy makes up weights"}
    )
    vllm_seed: int = field(default=0, metadata={"help": "of what is drawn without a seed", "ge": 0, "le": 2**31 - 1})
    vllm_start_timeout_s: float = field(default=1_200.0, metadata={"help": "from start to ready", "ge": 1, "le": 7_200})

    def method(self) -> Method:
        """The method in use, ``auto`` resolved.

        Raises:
            UserError: It needs a drafter and there is none, or there is one that it has no use for.
        """
        method = self.vllm_method
        if method == "auto":
            return "draft_model" if self.vllm_draft is not None else "off"
        if method in NEEDS_DRAFT and self.vllm_draft is None:
            raise UserError(f"RAILBUS_VLLM_METHOD={method} needs RAILBUS_VLLM_DRAFT, the folder of its weights")
        if method not in NEEDS_DRAFT and self.vllm_draft is not None:
            raise UserError(f"RAILBUS_VLLM_METHOD={method} has no use for RAILBUS_VLLM_DRAFT: leave one of the two out")
        return method

    def schedule(self) -> list[tuple[int, int, int]] | None:
        """Gamma by size of the batch, as inclusive ranges from 1 on; None when it is always the same.

        Raises:
            UserError: The text is not understood.
        """
        text = self.vllm_speculative_tokens_by_batch
        if not text:
            return None
        found = [_RANGE.fullmatch(part) for part in text.replace(",", " ").split()]
        ranges = [(int(each[1]), int(each[2]), int(each[3])) for each in found if each is not None]
        starts = [1, *(end + 1 for _, end, _ in ranges[:-1])]
        if not ranges or len(ranges) != len(found) or [start for start, _, _ in ranges] != starts:
            raise UserError(
                f"RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH={text!r}: must be ranges that follow each other from 1 on,"
                " such as '1-8:5 9-32:3 33-256:0'"
            )
        if any(end < start for start, end, _ in ranges) or max(gamma for *_, gamma in ranges) > 16:
            raise UserError(
                f"RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH={text!r}: a range ends before it starts, or drafts more than"
                " 16 tokens"
            )
        return ranges

    def draft_length(self) -> int:
        """Tokens drafted at most."""
        schedule = self.schedule()
        return self.vllm_speculative_tokens if schedule is None else max(gamma for *_, gamma in schedule)
