"""Rails that NeMo runs in tests. One raises an error, one blocks a text, and one rewrites a text."""

from nemoguardrails.actions.rail_outcome import RailOutcome, TransformTarget


async def raising(text, config):
    raise RuntimeError(f"cannot check {text}")


async def blocking(text, config):
    return RailOutcome.block() if "forbidden fruit" in text else RailOutcome.allow()


async def rewriting(text, config):
    if "shout" not in text:
        return RailOutcome.allow()
    return RailOutcome.transform([(TransformTarget.BOT_MESSAGE, text.replace("shout", "whisper"))])
