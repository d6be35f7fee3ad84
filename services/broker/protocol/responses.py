"""The types of the values that a request handler returns."""

from collections.abc import Callable


class CloseConnection(Exception):
    """The protocol has no response for this error, so the connection is closed and the message is logged."""


class DeferredResponse:
    """A response that is set once, possibly later. The function passed to `then` receives it."""

    __slots__ = ("_body", "_cancel", "_then", "done")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self.done = False
        self._body = b""
        self._then: Callable[[bytes], None] | None = None
        self._cancel = cancel

    def set_result(self, body: bytes) -> None:
        """Set the response. Do nothing if a response was set before, or after a `cancel`."""
        if self.done:
            return
        self.done = True
        if self._then is not None:
            self._then(body)
        else:
            self._body = body

    def then(self, then: Callable[[bytes], None]) -> None:
        """Call the function `then` with the response: now if the response is set already, else when it is set."""
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
"""The body of a response, a body that is set later, or None if the client expects no response (Produce with acks=0)."""
