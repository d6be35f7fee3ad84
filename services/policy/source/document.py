"""The types of ``policy.toml`` and ``patterns/*.toml``."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from schemas.base import Name
from schemas.requests import DeliveryMode
from services.runtime.classes.policy_deadlines import DeadlineBounds
from services.runtime.classes.service_classes import ClassName, ClassSpec, ServiceClasses

RailKind = Literal["admission", "secrets", "pii", "jailbreak"]
OnBroken = Literal["deny", "allow"]
Guard = Literal["none", "digit", "word", "token", "start"]
ValidatorName = Literal["luhn", "iban", "ssn", "ipv4", "entropy"]

MAX_MATCH_CHARS: Final = 512
"""Maximum length of a match of any pattern, in characters."""

Ms = Annotated[int, Meta(ge=1, le=86_400_000)]
Slug = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Text = Annotated[str, Meta(min_length=1, max_length=2_000)]


class RailSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input rail.

    Attributes:
        name: The kind of rail, which is also its name in verdicts.
        on_broken: What happens to the request if the rail fails or times out; None means ``rails.on_broken``.
        deadline_ms: The rail's deadline in milliseconds after the rails start; None means ``rails.deadline_ms``.
        threshold: Minimum score at which a classifier's answer is a finding.
        max_windows: Maximum number of windows of a long prompt that a classifier reads.
    """

    name: RailKind
    on_broken: OnBroken | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_windows: Annotated[int, Meta(ge=1, le=1_000)] = 8


class InputRails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input rails. They run concurrently.

    Attributes:
        deadline_ms: Deadline of rails that set no ``deadline_ms``, in milliseconds after the rails start.
        on_broken: What happens to the request if a rail that does not set ``on_broken`` fails or times out.
        recognizers: Recognizers of personal data in addition to the patterns. The only name is ``presidio``.
        rail: The rails, the most important first.
    """

    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] = 150
    on_broken: OnBroken = "deny"
    recognizers: Annotated[tuple[Literal["presidio"], ...], Meta(max_length=8)] = ()
    rail: Annotated[tuple[RailSpec, ...], Meta(min_length=1, max_length=16)]


class WindowSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The windows of an answer's text that a check reads, in characters (code points).

    Attributes:
        first_chars: Offset at which the first window ends. Each further window ends at twice the offset of the window
            before, until ``stride_chars`` is reached.
        stride_chars: Later windows end at the multiples of this number.
        context_chars: Length of a window.
        hold_chars: In gated delivery, the number of characters at a window's end that are not cleared yet, because a
            phrase may continue.
        timeout_ms: Time limit of one check of a window.
        retries: How often a failed check is repeated before the window counts as unchecked.
    """

    first_chars: Annotated[int, Meta(ge=1, le=10_000)] = 16
    stride_chars: Annotated[int, Meta(ge=1, le=10_000)] = 64
    context_chars: Annotated[int, Meta(ge=1, le=20_000)] = 320
    hold_chars: Annotated[int, Meta(ge=0, le=10_000)] = 32
    timeout_ms: Annotated[int, Meta(ge=1, le=60_000)] = 500
    retries: Annotated[int, Meta(ge=0, le=10)] = 2


class OutputChecks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output checks.

    Attributes:
        windows: The windows of tier 1, the NeMo output rails.
        classifiers: The names of the classifiers of tier 2. If there are none, there is no tier 2.
        classifier_windows: The windows of tier 2.
        max_findings: An answer with more findings is stopped.
        max_waiting_chars: If more characters than this wait for a check, the check's window counts as unchecked.
    """

    windows: WindowSpec = field(default_factory=WindowSpec)
    classifiers: Annotated[tuple[Slug, ...], Meta(max_length=8)] = ()
    classifier_windows: WindowSpec = field(
        default_factory=lambda: WindowSpec(first_chars=256, stride_chars=256, context_chars=640)
    )
    max_findings: Annotated[int, Meta(ge=1, le=1_000)] = 64
    max_waiting_chars: Annotated[int, Meta(ge=1_000, le=1_000_000)] = 65_536


class DeliveryBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The deliveries that a request may choose.

    Attributes:
        modes: Allowed modes. A request for another mode gets the nearest stricter mode.
        max_exposure_tokens: Maximum exposure in tokens.
        min_hold_tokens: In ``windowed`` delivery, the minimum number of tokens held back.
        min_hold_ms: In ``windowed`` delivery, the minimum time that text is held back, in milliseconds.
    """

    modes: Annotated[tuple[DeliveryMode, ...], Meta(min_length=1)] = ("optimistic", "windowed", "gated")
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 64
    min_hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    min_hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class PolicyDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``policy.toml``.

    Attributes:
        name: The policy's name. It is part of the policy's version.
        about: A description in one sentence.
        rails: Input rails.
        safety: Output checks.
        delivery: Bounds of a request's delivery.
        deadlines: Bounds of an interactive request's deadlines.
        classes: Classes of requests, by name.
        refusals: Texts for denied users, by reason. ``default`` is required.
        replacements: Texts that replace removed text, by category. ``default`` and ``stop`` are required.
    """

    name: Slug
    about: Text
    rails: InputRails
    safety: OutputChecks = field(default_factory=OutputChecks)
    delivery: DeliveryBounds = field(default_factory=DeliveryBounds)
    deadlines: DeadlineBounds = field(default_factory=DeadlineBounds)
    classes: dict[ClassName, ClassSpec] = field(default_factory=dict)
    refusals: dict[str, Text]
    replacements: dict[str, Text]

    def __post_init__(self) -> None:
        """Check the classes of requests.

        Raises:
            ValueError: A class contradicts itself.
        """
        self.service_classes()

    def service_classes(self) -> ServiceClasses:
        """Return all classes of requests, including the built-in classes."""
        return ServiceClasses(self.classes, self.deadlines)


class PatternSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``[[pattern]]``: a regular expression or a list of words to find in prompts and answers.

    Attributes:
        name: The rule's name, unique in the policy.
        category: The category that ``findings.rego`` decides on.
        regex: A pattern in the language of ``services.policy.matching.regex``; None if ``words`` are given.
        words: Literal texts; empty if ``regex`` is given.
        max_chars: Maximum length of a match. A pattern that can match a longer text is refused.
        ignore_case: Whether upper and lower case are the same.
        folded: Whether ``words`` are also found if they are disguised (``services.policy.matching.folding``).
        guard: Which neighbouring characters forbid a match. ``digit``: digits. ``word``: letters, digits and ``_``.
            ``token``: those of ``word``, and before the match also ``.%+-``. ``start``: those of ``word``, but only
            before the match.
        validator: A further check of matched text.
        examples: Texts, each of which must be matched as a whole.
        counterexamples: Texts in which nothing may be matched.
    """

    name: Name
    category: Slug
    regex: Annotated[str, Meta(min_length=1, max_length=2_000)] | None = None
    words: Annotated[tuple[Text, ...], Meta(max_length=20_000)] = ()
    max_chars: Annotated[int, Meta(ge=1, le=MAX_MATCH_CHARS)]
    ignore_case: bool = False
    folded: bool = False
    guard: Guard = "word"
    validator: ValidatorName | None = None
    examples: Annotated[tuple[Text, ...], Meta(min_length=1)]
    counterexamples: Annotated[tuple[Text, ...], Meta(min_length=1)]


class PatternFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[tuple[PatternSpec, ...], Meta(max_length=1_000)]
