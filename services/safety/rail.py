"""Our own rail among NeMo's output rails: words in disguise.

NeMo's verdict is one word for a whole window. What this rail finds has spans, so it is handed over as the outcome's
evidence, and the outcome is never a block: what a finding means is Rego's to say.
"""

from typing import Any, Final

from nemoguardrails.actions.rail_outcome import RailOutcome

from services.policy.folding import FoldedWords
from services.safety.looks import Spot

FLOW: Final = "railbus output"
CUSTOM_KEY: Final = "railbus_folded"
SPOTS: Final = "railbus_spots"
"""Where in an outcome's metadata the spots are."""

_NOTHING: Final = RailOutcome.allow()


async def railbus_output(text: str, config: Any) -> RailOutcome:
    """Look for the policy's folded words."""
    words: FoldedWords = config.custom_data[CUSTOM_KEY]
    found = words.find(text)
    return RailOutcome.allow(metadata={SPOTS: [Spot(*match) for match in found]}) if found else _NOTHING
