"""Why the bus did not take or keep an event.

BusError
 |- Closed     the producer was stopped before the event was accepted
 |- NotSent    accepted, but not acknowledged when the producer had to end
 `- Refused    the broker refused the event for good
"""


class BusError(Exception):
    """The bus could not do what was asked."""


class Closed(BusError):
    """The producer is not running: start it before posting, post nothing after stopping it."""


class NotSent(BusError):
    """The producer stopped before the broker acknowledged the event; it may or may not be on the log."""


class Refused(BusError):
    """The broker refused the event for good, such as one above its size limit."""
