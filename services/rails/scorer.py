"""The jailbreak classifier in a process of its own: tens of milliseconds a text, in which the service goes on."""

import multiprocessing
import os
import signal
import threading
from functools import cache
from multiprocessing.connection import wait

from services.rails.model import Model
from services.rails.weights import Missing


@cache
def _model() -> Model:
    return Model()


def begin() -> None:
    """First thing in the process: Ctrl-C is the service's to answer, and without the service it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def prepare() -> str | None:
    """Load the classifier; returns why it cannot be."""
    try:
        _model().score("A first text, so that everything is in memory.")
    except Missing as error:
        return str(error)
    return None


def spans(text: str) -> list[tuple[int, int]]:
    """The windows of a text that are to be scored, in code points."""
    return _model().spans(text)


def score(text: str) -> float:
    """How much a text is like an attack, 0 to 1."""
    return _model().score(text)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)
