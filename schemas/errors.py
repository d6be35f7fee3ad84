"""Why a record could not be read.

UnreadableEvent
 |- SkippedEvent      not for this reader: counted, never an alarm; the router keeps it in railbus.dead
 |   |- UnknownKind
 |   `- NewerVersion
 `- MalformedEvent    the writer is at fault: dead-lettered with topic, offset and field
"""


class UnreadableEvent(Exception):
    """A record that gives no event."""


class SkippedEvent(UnreadableEvent):
    """A record written for a newer reader."""


class UnknownKind(SkippedEvent):
    """The kind header names no event this version knows."""


class NewerVersion(SkippedEvent):
    """The version header is above what this version reads."""


class MalformedEvent(UnreadableEvent):
    """A record that claims to be an event and is not; the message names the field and what was wrong."""
