"""An answer that is not there yet."""

from collections.abc import Callable


class Later:
    """Given once, by whoever has it; `then` is told, or finds it already there."""

    __slots__ = ("_body", "_cancel", "_then", "done")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self.done = False
        self._body = b""
        self._then: Callable[[bytes], None] | None = None
        self._cancel = cancel

    def give(self, body: bytes) -> None:
        """Here is the answer. After a cancel it is dropped."""
        if self.done:
            return
        self.done = True
        if self._then is not None:
            self._then(body)
        else:
            self._body = body

    def then(self, then: Callable[[bytes], None]) -> None:
        """Call this with the answer, now or when it comes."""
        if self.done:
            then(self._body)
        else:
            self._then = then

    def cancel(self) -> None:
        """Nobody waits any more."""
        if not self.done:
            self.done = True
            if self._cancel is not None:
                self._cancel()
