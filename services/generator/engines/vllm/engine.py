"""The engine ``vllm``: runs vLLM as a library, with speculative decoding.

vLLM runs its scheduler and workers in child processes of this process. If they die, every running answer fails with
``engine_dead``, and this process ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final

from schemas.requests import MAX_PRIORITY, Message, Sampling
from services.generator.engines.vllm.arguments import fixed_draft_length
from services.generator.engines.vllm.output_parser import OutputParser
from services.generator.engines.vllm.settings import VllmSettings
from services.generator.engines.vllm.start import LoadedVllm, in_thread, load_vllm, prepare_arguments
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.worker.engine import (
    EngineError,
    EngineStats,
    EngineStep,
    GenerationResult,
    Job,
    NegativeLogLikelihood,
    only_model,
)

_log = logger("generator")

PRIORITIES: Final = {"interactive": 0, "batch": MAX_PRIORITY + 1}
"""Priority of each lane. vLLM schedules requests with lower values first. When the KV cache is full, it preempts
requests with higher values."""

HEALTH_POLL_S: Final = 1.0
"""Seconds between two checks that the engine is alive."""

CLOSE_S: Final = 2.0
"""Seconds that the child processes have to end before they are killed. They have no state that must be saved."""

FIRST_TOKEN_TIMEOUT_S: Final = 300.0
"""Maximum number of seconds to wait for the first token, after the engine has been loaded. During this wait, the engine
compiles some kernels."""


class VllmEngine:
    def __init__(self, settings: VllmSettings) -> None:
        self.name = "vllm"
        self._settings = settings
        self._arguments = prepare_arguments(settings)
        self.model = settings.model or (settings.model_path.resolve().name if settings.model_path else self.name)
        self.capacity = settings.vllm_max_seqs
        self.preempts = True  # vLLM's scheduler preempts by priority
        self._draft_length = fixed_draft_length(settings)
        self._speculative = "speculative_config" in self._arguments
        self._vllm: LoadedVllm | None = None
        self._tokenizer: Any = None
        self._limit = 0
        self._scored = 0

    async def start(self) -> None:
        """Load the model, and wait until it has generated a token.

        Raises:
            UserError: The engine cannot start. The message has the reason.
        """
        settings = self._settings
        vllm = self._vllm = await in_thread(
            lambda: load_vllm(settings, self._arguments), timeout_s=settings.vllm_start_timeout_s
        )
        self._limit = vllm.engine.model_config.max_model_len
        self._tokenizer = vllm.engine.get_tokenizer()
        if not self._tokenizer.chat_template:
            raise UserError(
                f"{self.model} has no chat template, so it is probably a base model: use the instruction-tuned one"
            )
        try:
            await self._warm_up()
        except (EngineError, TimeoutError) as error:
            raise UserError(f"engine vllm: {self.model} was loaded but generates nothing: {error}") from None
        drafter = self._arguments.get("speculative_config", {}).get("method", "nothing")
        _log.info("vllm: %s; %s drafts; %d tokens, %d answers at most", self.model, drafter, self._limit, self.capacity)

    def resolve(self, model: str) -> str:
        return only_model(model, self.model)

    async def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        vllm = self._running()
        prompt = self._prompt(job.messages)
        parser = OutputParser(len(prompt), drafted=self._draft_length, speculative=self._speculative)
        outputs = vllm.engine.generate(
            {"type": "token", "prompt_token_ids": prompt},
            vllm.sampling(**sampling_arguments(job.sampling, room=self._limit - len(prompt))),
            request_id=job.run,
            priority=PRIORITIES[job.lane] + job.priority,
        )
        try:
            async for output in outputs:
                step = parser.step(output)
                if step is not None:
                    yield step
                if output.finished:
                    yield parser.done(output)
                    return
        except vllm.dead_error:
            raise EngineError("engine_dead", "the engine's process died", retryable=True) from None
        except vllm.request_error as error:  # its message is not used, because it may repeat the prompt
            raise EngineError(
                "bad_request", f"the engine refused the request ({type(error).__name__})", retryable=False
            ) from None
        finally:
            await outputs.aclose()
        raise EngineError("internal", "the engine ended the answer without a result", retryable=True)

    async def score(self, text: str) -> NegativeLogLikelihood:
        vllm = self._running()
        tokens = self._tokenizer.encode(text)[: self._limit - 1]
        self._scored += 1
        outputs = vllm.engine.generate(
            {"type": "token", "prompt_token_ids": tokens},
            vllm.sampling(max_tokens=1, temperature=0.0, prompt_logprobs=0),
            request_id=f"score-{self._scored}",
        )
        found: list[float] = []
        try:
            async for output in outputs:
                if output.prompt_logprobs:
                    pairs = zip(
                        tokens[1:], output.prompt_logprobs[1:], strict=True
                    )  # the first token has no probability, because no token precedes it
                    found = [each[token].logprob for token, each in pairs]
        except (vllm.dead_error, vllm.request_error) as error:
            raise EngineError(
                "internal", f"the text was not scored ({type(error).__name__})", retryable=False
            ) from None
        finally:
            await outputs.aclose()
        return NegativeLogLikelihood(nats=-sum(found), tokens=len(found))

    async def wait_until_dead(self) -> None:
        engine = self._running().engine
        while not engine.errored:  # noqa: ASYNC110 - vLLM does not signal it
            await asyncio.sleep(HEALTH_POLL_S)

    def stats(self) -> EngineStats:
        # ``running`` includes waiting requests, because vLLM reports only the sum.
        return EngineStats(running=0 if self._vllm is None else self._vllm.engine.get_num_unfinished_requests())

    async def close(self) -> None:
        vllm, self._vllm = self._vllm, None
        if vllm is not None:
            if vllm.engine.output_handler is not None:
                vllm.engine.output_handler.cancel()  # this task would log the shutdown as a failure
            logging.getLogger("vllm").setLevel(logging.ERROR)  # vLLM logs a warning for each process that it kills
            with contextlib.suppress(UserError):
                await in_thread(partial(vllm.engine.shutdown, timeout=CLOSE_S), timeout_s=CLOSE_S + 2)
            vllm.engine.shutdown = lambda: None  # the finalizer would call it again when the interpreter exits

    async def _warm_up(self) -> None:
        job = Job(
            request_id="start", run="start", model=self.model,
            messages=(Message(role="user", content="Hello"),), sampling=Sampling(max_tokens=1),
        )  # fmt: skip
        async with asyncio.timeout(FIRST_TOKEN_TIMEOUT_S):
            said = [each async for each in self.generate(job)]
        if not any(isinstance(each, GenerationResult) and each.usage.completion_tokens for each in said):
            raise EngineError("internal", "it ended its first answer without a token", retryable=False)

    def _running(self) -> LoadedVllm:
        if self._vllm is None:
            raise RuntimeError("call start() first")
        return self._vllm

    def _prompt(self, messages: tuple[Message, ...]) -> list[int]:
        turns = [{"role": each.role, "content": each.content} for each in messages]
        try:
            tokens = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        except Exception as error:  # noqa: BLE001 - templates raise any exception, and its message may contain the prompt
            raise EngineError(
                "bad_request",
                f"the model's chat template refuses this conversation ({type(error).__name__}): roles must alternate",
                retryable=False,
            ) from None
        if len(tokens) >= self._limit:
            raise EngineError(
                "bad_request",
                f"the prompt is too long: {len(tokens)} tokens, the limit is {self._limit} tokens",
                retryable=False,
            )
        return list(tokens)


def sampling_arguments(sampling: Sampling, *, room: int) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's ``SamplingParams``.

    Args:
        sampling: The request's sampling parameters.
        room: Number of tokens that the model's context has left after the prompt.
    """
    found: dict[str, Any] = {
        "max_tokens": min(sampling.max_tokens, room),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        found["seed"] = sampling.seed
    if sampling.stop:
        found["stop"] = list(sampling.stop)
    return found
