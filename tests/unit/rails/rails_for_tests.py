"""Input rails that NeMo Guardrails runs in tests. One raises an exception, one rewrites the prompt, one is counted."""

from nemoguardrails.actions.rail_outcome import RailOutcome, TransformTarget

COUNTED = []
"""The prompts that the rail ``counting`` has got."""


async def counting(text, config):
    COUNTED.append(text)
    return RailOutcome.allow()


async def raising(text, config):
    raise RuntimeError(f"cannot check {text}")


async def rewriting(text, config):
    return RailOutcome.transform([(TransformTarget.USER_MESSAGE, text.replace("shout", "whisper"))])
