"""Our own rail among NeMo's output rails: words in disguise.

NeMo's verdict is one word for a whole window. What this rail finds has spans, so it is handed over beside the verdict;
and since NeMo stops at the first rail that blocks, it never blocks: what a finding means is Rego's to say.
"""

from contextvars import ContextVar
from typing import Any, Final

from nemoguardrails.actions.rail_outcome import RailOutcome

from services.policy.folding import FoldedWords
from services.safety.looks import Spot

FLOW: Final = "railbus output"
CUSTOM_KEY: Final = "railbus_folded"

SPOTS: ContextVar[list[Spot] | None] = ContextVar("railbus_spots", default=None)
"""Where the rail puts what it finds: set by whoever runs the engine, for one window."""


async def railbus_output(text: str, config: Any) -> RailOutcome:
    """Look for the policy's folded words.

    Raises:
        LookupError: Nobody listens for what is found; NeMo then reports the rail as failed.
    """
    spots = SPOTS.get()
    if spots is None:
        raise LookupError("railbus output runs only inside the safety service")
    words: FoldedWords = config.custom_data[CUSTOM_KEY]
    spots.extend(Spot(*match) for match in words.find(text))
    return RailOutcome.allow()
