import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from services.generator.engines.vllm.arguments import GIB, engine_arguments, engine_environment
from services.generator.engines.vllm.exit_with_parent import EXIT_WITH_PARENT_WORKER, mark_as_parent
from services.generator.engines.vllm.model_files import read_model_config, uses_sliding_window
from services.generator.engines.vllm.patches import PATCHED_WORKER, SKIP_DRAFT_EXECUTOR
from services.generator.engines.vllm.settings import VllmSettings
from services.generator.engines.vllm.start_errors import start_failure_reason
from services.generator.engines.vllm.stderr_capture import StderrCapture
from services.runtime.errors import UserError

Returned = TypeVar("Returned")

INSTALL: Final = (
    "pip install 'railbus[vllm]' into an environment of its own, and name its Python in RAILBUS_GENERATOR_PYTHON;"
    " a machine without a GPU needs vLLM's CPU build: in a checkout `make .venv-vllm/.ready` installs it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedVllm:
    """A running vLLM engine, and the classes of vLLM that are needed to use it.

    Attributes:
        engine: A running ``AsyncLLM``.
        sampling: Function that creates a ``SamplingParams`` with the output kind ``DELTA``.
        dead_error: Exception that ``engine`` raises if its processes have died.
        request_error: Exception that ``engine`` raises if a request is invalid.
    """

    engine: Any
    sampling: Callable[..., Any]
    dead_error: type[Exception]
    request_error: type[Exception]


def prepare_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Check settings and model files without loading vLLM. Return the keyword arguments of ``AsyncEngineArgs``.

    Raises:
        UserError: A setting is wrong, or a file is missing.
    """
    target, draft = settings.model_path, settings.vllm_draft
    if target is None:
        raise UserError("engine vllm needs RAILBUS_MODEL_PATH, the folder of a model: railbus up --model-path DIR")
    has_weights = settings.vllm_load_format != "dummy"
    read_model_config(target, "RAILBUS_MODEL_PATH", weights=has_weights)
    gemma_drafts_gemma = False
    if draft is not None:
        gemma_drafts_gemma = uses_sliding_window(read_model_config(draft, "RAILBUS_VLLM_DRAFT", weights=has_weights))
    return engine_arguments(settings, target, gemma_drafts_gemma=gemma_drafts_gemma)


def load_vllm(settings: VllmSettings, arguments: dict[str, Any]) -> LoadedVllm:
    """Start the engine. This call blocks for seconds to minutes.

    Raises:
        UserError: The engine cannot start. The message has the reason.
    """
    os.environ.update(engine_environment(settings, os.environ))
    mark_as_parent()
    verbose = logging.getLogger("railbus").isEnabledFor(logging.DEBUG)
    if not verbose:
        logging.getLogger("vllm").setLevel(logging.WARNING)
    with StderrCapture(verbose=verbose) as capture:
        try:
            return _engine(settings, arguments)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - vLLM's errors have no common type, and the operator must fix each of them
            lines = [*capture.captured_lines, *f"{type(error).__name__}: {error}".splitlines()]
            raise UserError(f"engine vllm: {start_failure_reason(lines)}") from None


def _engine(settings: VllmSettings, arguments: dict[str, Any]) -> LoadedVllm:
    try:
        from vllm import AsyncEngineArgs, SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError
    except ImportError as error:
        raise UserError(f"engine vllm needs vLLM ({error.name or 'a part of it'} is missing): {INSTALL}") from None
    found = current_platform.device_type
    if not found or (settings.vllm_device == "gpu" and found == "cpu"):
        build = "this vLLM is built for the CPU" if found == "cpu" else "vLLM finds none"
        raise UserError(
            f"engine vllm: no GPU ({build}): check the driver and CUDA_VISIBLE_DEVICES; on the CPU use the CPU build"
            " and RAILBUS_VLLM_DEVICE=cpu"
        )
    if settings.vllm_device == "cpu" and found != "cpu":
        raise UserError(f"RAILBUS_VLLM_DEVICE=cpu: this vLLM is built for {found}; install its CPU build")
    if found == "cpu" and not settings.vllm_kv_gib:
        arguments = arguments | {"kv_cache_memory_bytes": GIB}  # without this, vLLM takes a share of all memory
    patched = found == "cpu" and "speculative_config" in arguments
    if patched:
        arguments = arguments | {"distributed_executor_backend": SKIP_DRAFT_EXECUTOR}
    return LoadedVllm(
        engine=AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments, worker_extension_cls=PATCHED_WORKER if patched else EXIT_WITH_PARENT_WORKER)
        ),
        sampling=partial(SamplingParams, output_kind=RequestOutputKind.DELTA),
        dead_error=EngineDeadError,
        request_error=VLLMClientError,
    )


async def in_thread(work: Callable[[], Returned], *, timeout_s: float) -> Returned:
    """Run a blocking function in a daemon thread, and return its result.

    Raises:
        UserError: The function took longer than ``timeout_s``. It continues in its thread.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Returned] = loop.create_future()

    def set_result(value: Returned | None, error: BaseException | None) -> None:
        if not result.done():
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(value)  # type: ignore[arg-type]  # None only if Returned is None

    def report(value: Returned | None, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing awaits the result any more
            loop.call_soon_threadsafe(set_result, value, error)

    def run() -> None:
        try:
            report(work(), None)
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            report(None, error)

    threading.Thread(target=run, name="engine-start", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            return await result
    except TimeoutError:
        raise UserError(
            f"engine vllm was not ready after {timeout_s:.0f} s: raise RAILBUS_VLLM_START_TIMEOUT_S, or find the"
            " cause with RAILBUS_LOG_LEVEL=DEBUG"
        ) from None
