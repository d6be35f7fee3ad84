"""Why a record could not be read.

UnreadableEvent
 |- SkippedEvent      written for a newer reader: counted, never an alarm; the router keeps it in railbus.dead
 |   |- UnknownKind
 |   `- NewerVersion
 `- MalformedEvent    the writer's error: dead-lettered with topic, offset and field
"""


class UnreadableEvent(Exception):
    """A record that cannot be decoded to an event."""


class SkippedEvent(UnreadableEvent):
    """A record written for a newer reader."""


class UnknownKind(SkippedEvent):
    """The kind header names no event that this version knows."""


class NewerVersion(SkippedEvent):
    """The version header is above what this version reads."""


class MalformedEvent(UnreadableEvent):
    """A record of a known kind that breaks its format; the message names the field and the fault."""
