"""The engine ``llama``: llama.cpp's server inside this process, on the CPU.

The server listens on a Unix socket, and requires a random key.
"""

import asyncio
import contextlib
import http.client
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp

from services.generator.engines.chat_completions.client import CompletionsClient, transport_error
from services.generator.engines.chat_completions.parser import Endpoint
from services.runtime import weights
from services.runtime.errors import UserError
from services.runtime.weights import SMOLLM2, CacheSettings
from services.worker.engine import (
    EngineError,
    EngineStats,
    EngineStep,
    GenerationResult,
    Job,
    NegativeLogLikelihood,
    only_model,
)

PREFILL_BATCH: Final = 128
"""Number of prompt tokens computed between two checks for an abort. This takes about a second on one slow thread."""

MAX_SCORED_TOKENS: Final = 32
"""Maximum number of tokens of a text that are scored. Each scored token needs one request to the server."""

ENDED_CACHE_MIB: Final = 256
"""Memory for the KV caches of ended answers, in MiB, in addition to the KV caches of the slots. The server's default is
8 GiB, which a long batch job with different prompts would fill. A short prompt of SmolLM2-135M takes 0.6 MiB."""

SCORE_BIAS: Final = 1_000.0
"""Added to the logit of a token, so that this token is sampled. The probabilities that the server reports do not
include the bias."""

DRAFT_LENGTHS: Final = (3, 8)
"""Length of the searched n-gram and of the draft. The method ``ngram`` looks for an earlier occurrence of the last
3 tokens of the text so far, and drafts the 8 tokens that followed that occurrence."""

MAX_SOCKET_PATH_BYTES: Final = 100
"""Maximum length of the socket's path. It is a little less than the system's limit of 107 bytes."""

FIRST_TOKEN_TIMEOUT_S: Final = 60.0
"""Maximum number of seconds to wait for the first token, after the server has been loaded."""

INSTALL: Final = "pip install 'railbus[embedded]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSettings:
    """Settings of the engine ``llama``, which runs a GGUF model on the CPU, inside the generator's process.

    Attributes:
        model: Name of the model in requests; ``default`` works too. If not set, the file's name without suffix.
        model_path: A GGUF file. If not set, the model is SmolLM2-135M, which ``railbus up`` downloads on first use.
        cache: Settings of the folder for downloaded models.
        llama_threads: Number of threads that compute. More threads than free CPU cores make each token slower.
        llama_slots: Maximum number of answers generated at the same time.
        llama_context: Maximum number of tokens of prompt and answer together. A longer prompt is refused.
        llama_speculation: ``ngram`` drafts tokens from the text so far, without a draft model. ``off`` drafts nothing.
        llama_batch: Maximum number of prompt tokens computed in one step.
        llama_kv: Data type of the KV cache. ``q8_0`` and ``q4_0`` need less memory than ``f16``, but change the
            answers.
        llama_flash_attention: Whether FlashAttention is used. ``auto`` leaves the choice to llama.cpp.
        llama_prefix_cache: Whether the KV cache of an ended answer is kept for later prompts with the same beginning.
    """

    model: str | None = field(default=None, metadata={"help": "name of the model"})
    model_path: Path | None = field(default=None, metadata={"help": "a GGUF file"})
    cache: CacheSettings = field(default_factory=CacheSettings)
    llama_threads: int = field(
        default=max(1, (os.cpu_count() or 2) // 2),
        metadata={"help": "number of threads that compute", "ge": 1, "le": 256},
    )
    llama_slots: int = field(default=4, metadata={"help": "maximum number of concurrent answers", "ge": 1, "le": 64})
    llama_context: int = field(
        default=2_048,
        metadata={"help": "maximum number of tokens of prompt and answer together", "ge": 128, "le": 131_072},
    )
    llama_speculation: Literal["off", "ngram"] = field(default="off", metadata={"help": "how tokens are drafted"})
    llama_batch: int = field(
        default=PREFILL_BATCH,
        metadata={"help": "maximum number of prompt tokens computed in one step", "ge": 1, "le": 8_192},
    )
    llama_kv: Literal["f16", "q8_0", "q4_0"] = field(default="f16", metadata={"help": "type of the KV cache"})
    llama_flash_attention: Literal["auto", "on", "off"] = field(
        default="auto", metadata={"help": "whether FlashAttention is used, auto = llama.cpp's choice"}
    )
    llama_prefix_cache: bool = field(default=True, metadata={"help": "reuse the KV cache of common prefixes"})


# The Python binding also offers callbacks, but it does not call them before the first token. Over the socket, an answer
# can be aborted during prefill: between two batches of the prompt, the server checks for a closed connection.
class LlamaEngine:
    def __init__(self, settings: LlamaSettings) -> None:
        self.name = "llama"
        self._settings = settings
        self._path = settings.model_path or _default_weights(settings.cache)
        self._binding = _binding()
        self.model = settings.model or self._path.stem
        self.capacity = settings.llama_slots
        self.preempts = False
        self._server: Any = None
        self._directory: Path | None = None
        self._session: aiohttp.ClientSession | None = None
        self._completions: CompletionsClient | None = None

    async def start(self) -> None:
        """Load the model, and wait until it has generated a token.

        Raises:
            UserError: The file does not exist, or llama.cpp cannot load it.
        """
        if not self._path.is_file():
            raise UserError(f"RAILBUS_MODEL_PATH={str(self._path)!r}: there is no such file; it must be a GGUF model")
        if self._settings.llama_batch < self._settings.llama_slots:
            raise UserError(
                f"RAILBUS_LLAMA_BATCH={self._settings.llama_batch}: must be at least RAILBUS_LLAMA_SLOTS"
                f" ({self._settings.llama_slots}), because a step computes a token of each slot"
            )
        key = secrets.token_hex(32)
        self._directory = _private_directory()
        path = str(self._directory / "llama.sock")
        params = self._params(path, key)
        try:
            self._server = await asyncio.to_thread(_load, self._binding.Server, params, path, key)
        except RuntimeError:
            raise UserError(
                f"{self._path.name} cannot be loaded: it must be a GGUF model that llama.cpp knows"
            ) from None
        finally:
            _restore_signal_handlers()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=self.capacity, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Authorization": f"Bearer {key}"},
        )
        self._completions = CompletionsClient(self._session, Endpoint(url="http://llama/v1/chat/completions"))

    def resolve(self, model: str) -> str:
        return only_model(model, self.model)

    def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        if self._completions is None:
            raise RuntimeError("call start() first")
        return self._completions.stream(job)

    async def score(self, text: str) -> NegativeLogLikelihood:
        """Return the negative log-likelihood of the first ``MAX_SCORED_TOKENS`` tokens of a text.

        One request is sent to the server for each token.

        Raises:
            EngineError: The server refused a request, or could not be reached.
        """
        if self._session is None:
            raise RuntimeError("call start() first")
        tokens = (await self._ask(self._session, "tokenize", {"content": f"\n{text}"}))["tokens"]
        nats, scored = 0.0, tokens[: MAX_SCORED_TOKENS + 1]
        for at in range(1, len(scored)):
            # The bias forces the server to generate the given token, so that it reports the token's probability.
            body = {
                "prompt": scored[:at], "n_predict": 1, "temperature": 0, "n_probs": 1,
                "logit_bias": [[scored[at], SCORE_BIAS]], "cache_prompt": self._settings.llama_prefix_cache,
            }  # fmt: skip
            nats -= (await self._ask(self._session, "completion", body))["completion_probabilities"][0]["logprob"]
        return NegativeLogLikelihood(nats=nats, tokens=max(0, len(scored) - 1))

    async def _ask(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
        try:
            async with session.post(f"http://llama/{path}", json=body) as response:
                if response.status == http.HTTPStatus.OK:
                    return await response.json()
                raise EngineError("internal", f"llama.cpp answered {response.status} to {path}", retryable=False)
        except (aiohttp.ClientError, OSError) as error:
            raise transport_error(error) from None

    def stats(self) -> EngineStats:
        return EngineStats(running=0 if self._completions is None else self._completions.running)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        last, self._server = [self._server], None
        # The list has the last reference. So this frees the server, which joins the server's thread.
        await asyncio.to_thread(last.clear)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _params(self, path: str, key: str) -> Any:
        settings, params = self._settings, self._binding.CommonParams()
        params.model.path = str(self._path)
        params.hostnames = [path]
        params.api_keys = [key]
        params.ui = params.endpoint_slots = params.endpoint_props = False
        params.verbosity = -1
        params.n_parallel = settings.llama_slots
        params.n_ctx = settings.llama_context * settings.llama_slots
        params.n_threads_http = settings.llama_slots + 1
        params.n_batch = params.n_ubatch = settings.llama_batch
        params.cache_prompt = settings.llama_prefix_cache
        params.cache_ram_mib = ENDED_CACHE_MIB if settings.llama_prefix_cache else 0
        types, flash = self._binding.ggml_type, self._binding.llama_flash_attn_type
        params.cache_type_k = params.cache_type_v = getattr(types, f"GGML_TYPE_{settings.llama_kv.upper()}")
        if settings.llama_flash_attention != "auto":
            wanted = "ENABLED" if settings.llama_flash_attention == "on" else "DISABLED"
            params.flash_attn_type = getattr(flash, f"LLAMA_FLASH_ATTN_TYPE_{wanted}")
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.llama_threads
        params.n_gpu_layers = 0
        if settings.llama_speculation == "ngram":
            params.speculative.types = [self._binding.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            # With the library's defaults (12 and 48), hardly any n-gram of a short answer occurs twice.
            params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = DRAFT_LENGTHS
            params.no_extra_bufts = True  # repacked weights round differently and would change greedy answers
        return params


def _default_weights(cache: CacheSettings) -> Path:
    found = weights.find(SMOLLM2, cache.folder())
    if found is None:
        raise UserError(
            f"engine llama has no weights: `railbus up` downloads them ({SMOLLM2.size / 1e6:.0f} MB), or set"
            " RAILBUS_MODEL_PATH to a GGUF file"
        )
    return found


def _binding() -> Any:
    try:
        import xllamacpp
    except ImportError:
        raise UserError(f"engine llama needs xllamacpp: {INSTALL}") from None
    return xllamacpp


def _private_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="railbus-"))
    # The path of a Unix socket has a maximum length.
    if len(os.fsencode(directory)) < MAX_SOCKET_PATH_BYTES - 12:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="railbus-", dir="/tmp"))


class _UnixSocketConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("llama", timeout=FIRST_TOKEN_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(FIRST_TOKEN_TIMEOUT_S)
        self.sock.connect(self._path)


def _load(server: Callable[[Any], Any], params: Any, path: str, key: str) -> Any:
    # The constructor returns before the server's loop runs, and freeing the server at that moment would hang. So this
    # function also waits for the first token. The caller runs it in a thread, where it cannot be cancelled. The binding
    # holds the GIL while it reads the weights.
    loaded = server(params)
    connection = _UnixSocketConnection(path)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", b'{"prompt":"a","max_tokens":1}', headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"engine llama: the model was loaded but does not answer: {error}") from None
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        raise UserError(f"engine llama: the model was loaded but answers {status}")
    return loaded


def _restore_signal_handlers() -> None:
    # Some versions of the binding replace Python's handlers for SIGINT and SIGTERM.
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            with contextlib.suppress(ValueError):  # outside the main thread, Python refuses to set handlers
                signal.signal(number, handler)
