"""What vLLM's CPU build gets wrong, put right inside its own processes.

vLLM 0.32 spreads each request's temperature, top-k and top-p over the tokens drafted for it. Its CPU kernel writes the
result into a copy that nobody reads, so whatever lay in memory is taken for the temperature: as soon as something
drafts and anything but greedy is asked for, answers are drawn from another distribution than the target's.
``tests/vllm/test_lossless.py`` sees both, the defect and that it is gone. GPUs use other kernels.
"""

from typing import Any, Final, Self

from services.generator.engines.vllm_owner import OwnedWorker

MENDED: Final = "services.generator.engines.vllm_mend.MendedWorker"
"""To be given to vLLM as ``worker_extension_cls``: it makes one in every process that computes."""

EXECUTOR: Final = "services.generator.engines.vllm_executor.QuietExecutor"
"""To be given to vLLM as ``distributed_executor_backend``: it makes one in the process that schedules."""


def spread(values: Any, ends: Any, total: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Each request's value, once for every token drafted for it.

    Args:
        values: One for each request.
        ends: Where each request's tokens end.
        total: Tokens of all of them.
        replace_from: A value that is put otherwise: a temperature of 0, by which nothing can be divided.
        replace_to: What is put for it.
    """
    replaced = values.masked_fill(values == replace_from, replace_to)
    counts = ends.long().diff(prepend=ends.new_zeros(1).long())
    return replaced.repeat_interleave(counts, output_size=total)


def mend() -> None:
    """Does it, in this process."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = spread


class MendedWorker(OwnedWorker):
    """Adds nothing to vLLM's worker but that it is mended when it is made, and ends with its owner."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """The worker."""
        mend()
        return super().__new__(cls)
