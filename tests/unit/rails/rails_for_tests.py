"""Deliberately faulty input rails for NeMo Guardrails: one raises an exception, the other rewrites the prompt."""

from nemoguardrails.actions.rail_outcome import RailOutcome, TransformTarget


async def raising(text, config):
    raise RuntimeError(f"cannot check {text}")


async def rewriting(text, config):
    return RailOutcome.transform([(TransformTarget.USER_MESSAGE, text.replace("shout", "whisper"))])
