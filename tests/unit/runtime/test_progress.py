import io
from pathlib import Path

from services.runtime.weights import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_that_is_drawn_again():
    stream, times = Terminal(), iter((0.0, 1.0, 4.5))
    progress = Progress("downloading model", 100_000_000, stream, lambda: next(times))
    progress.begin()
    progress.show(50_000_000)
    progress.show(250_000_000)
    progress.end(Path("/cache/model"))
    begun, half, full, done = stream.getvalue().split("\r\x1b[K")[1:]
    assert begun == "downloading model (100 MB, once)"
    assert half == f"downloading model [{'#' * 15}{'.' * 15}]  50% of 100 MB"
    assert full == f"downloading model [{'#' * 30}] 100% of 100 MB"
    assert done == "downloading model: done in 3.5 s, kept in /cache\n"


def test_anything_else_gets_two_lines():
    stream, times = io.StringIO(), iter((0.0, 1.0, 4.5))
    progress = Progress("downloading model", 100_000_000, stream, lambda: next(times))
    progress.begin()
    progress.show(50_000_000)
    progress.end(Path("/cache/model"))
    assert stream.getvalue() == ("downloading model (100 MB, once)\ndownloading model: done in 3.5 s, kept in /cache\n")
