"""An executor for vLLM that fetches no draft tokens after a step without drafting.

Only vLLM imports this module.
"""

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor


class SkipDraftExecutor(MultiprocExecutor):  # type: ignore[misc]  # vLLM is installed in another environment
    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        self._drafts = scheduler_output.num_spec_tokens_to_schedule > 0
        return super().execute_model(scheduler_output, non_block)

    def take_draft_token_ids(self) -> Any:
        # With n-gram and suffix drafting, vLLM calls this after every step. On the CPU, each fetch is a round trip
        # between two processes that busy-wait on the same cores (``tests/bench/RESULTS.md`` has the cost).
        return super().take_draft_token_ids() if self._drafts else None
