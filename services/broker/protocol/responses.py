"""What a request handler returns."""

from collections.abc import Callable


class CloseConnection(Exception):
    """The protocol has no answer for this: the connection is closed, and the message is logged."""


class DeferredResponse:
    """A response that is set later, once; `then` registers who gets it, or delivers it immediately if it is set."""

    __slots__ = ("_body", "_cancel", "_then", "done")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self.done = False
        self._body = b""
        self._then: Callable[[bytes], None] | None = None
        self._cancel = cancel

    def set_result(self, body: bytes) -> None:
        """Give the response; it is dropped after a cancel."""
        if self.done:
            return
        self.done = True
        if self._then is not None:
            self._then(body)
        else:
            self._body = body

    def then(self, then: Callable[[bytes], None]) -> None:
        """Call `then` with the response, now or once it is given."""
        if self.done:
            then(self._body)
        else:
            self._then = then

    def cancel(self) -> None:
        if not self.done:
            self.done = True
            if self._cancel is not None:
                self._cancel()


ApiResponse = bytes | DeferredResponse | None
"""A response's body; one that is given later; none at all (Produce with acks=0)."""
