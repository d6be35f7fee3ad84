"""Fix a defect of vLLM 0.32: with speculation on the CPU, vLLM samples with a wrong temperature, top-k and top-p."""

from typing import Any, Final, Self

from services.generator.engines.vllm.exit_with_parent import ExitWithParentWorker

PATCHED_WORKER: Final = "services.generator.engines.vllm.patches.PatchedWorker"
"""Value for vLLM's ``worker_extension_cls``: vLLM instantiates the class in every worker process."""

SKIP_DRAFT_EXECUTOR: Final = "services.generator.engines.vllm.executor.SkipDraftExecutor"
"""Value for vLLM's ``distributed_executor_backend``: vLLM instantiates the class in its scheduler process."""


def expand_batch_to_tokens(values: Any, ends: Any, total: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Repeat each request's value for each of its tokens.

    For example, ``values`` [7, 9] and ``ends`` [2, 5] give [7, 7, 9, 9, 9].

    Values equal to ``replace_from`` become ``replace_to``.
    """
    # ``ends`` has the index after the last token of each request.
    replaced = values.masked_fill(values == replace_from, replace_to)
    counts = ends.long().diff(prepend=ends.new_zeros(1).long())
    return replaced.repeat_interleave(counts, output_size=total)


def apply_patches() -> None:
    from vllm.v1.sample import rejection_sampler

    # vLLM's CPU kernel writes its result into a copy that is never read, and uninitialised memory is then used as the
    # temperature. ``tests/vllm/test_lossless.py`` shows the defect and the fix.
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


class PatchedWorker(ExitWithParentWorker):
    """A vLLM worker extension that repairs the defect described in this module."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        apply_patches()
        return super().__new__(cls)
