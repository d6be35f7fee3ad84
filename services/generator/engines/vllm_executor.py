"""vLLM's executor, without the question that a step which drafts nothing need not ask. Imported by vLLM alone.

With n-gram and suffix drafting vLLM asks its computing process after every step what was drafted, also where the batch
is so large that nothing is. On the CPU that is one more way to another process and back, while both wait spinning for
the same two cores. ``tests/bench/RESULTS.md`` has what it costs.
"""

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class QuietExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM is in another environment
    """Asks for drafts only after a step that drafted."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Remembers whether this step drafts."""
        self._drafts = scheduler_output.num_spec_tokens_to_schedule > 0
        return super().execute_model(scheduler_output, non_block)

    def take_draft_token_ids(self) -> Any:
        """The tokens drafted in the last step; None, which leaves every request without any, if it was not to draft."""
        return super().take_draft_token_ids() if self._drafts else None
