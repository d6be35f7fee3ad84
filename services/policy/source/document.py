"""What ``policy.toml`` and ``patterns/*.toml`` may contain."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from schemas.base import Name
from schemas.requests import DeliveryMode
from services.runtime.classes.policy_deadlines import DeadlineBounds
from services.runtime.classes.service_classes import ClassName, ClassSpec, ServiceClasses

RailKind = Literal["admission", "secrets", "pii", "jailbreak"]
OnBroken = Literal["deny", "allow"]

PII_PREFIX: Final = "pii/"
"""Prefix of the names of patterns for personal data."""

Guard = Literal["none", "digit", "word", "token", "start"]
ValidatorName = Literal["luhn", "iban", "ssn", "ipv4", "entropy"]

MAX_MATCH_CHARS: Final = 512
"""Maximum length of a match of any pattern, in characters."""

Ms = Annotated[int, Meta(ge=1, le=86_400_000)]
Slug = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Text = Annotated[str, Meta(min_length=1, max_length=2_000)]


def pattern_rail(pattern: str) -> RailKind:
    """Return the input rail that searches prompts for the pattern with this name."""
    return "pii" if pattern.startswith(PII_PREFIX) else "secrets"


class RailSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an input rail.

    Attributes:
        name: Which rail this is, such as ``pii``. Verdicts use this name for the rail.
        on_broken: What happens to the request if the rail fails or times out; None means ``rails.on_broken``.
        deadline_ms: Maximum time for the rail, in milliseconds; None means ``rails.deadline_ms``.
        threshold: Minimum score at which a classifier's answer is a finding.
        max_windows: Maximum number of windows of a prompt that a classifier reads.
    """

    name: RailKind
    on_broken: OnBroken | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_windows: Annotated[int, Meta(ge=1, le=1_000)] = 8


class InputRails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input rails. They run concurrently.

    Attributes:
        deadline_ms: Default of the rails' ``deadline_ms``.
        on_broken: Default of the rails' ``on_broken``.
        recognizers: Recognizers of personal data in addition to the patterns. The only allowed entry is ``presidio``.
        rail: The rails. If several refuse a prompt, the first of them gives the reason. ``admission`` counts as the
            first, wherever it is listed.
    """

    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] = 150
    on_broken: OnBroken = "deny"
    recognizers: Annotated[tuple[Literal["presidio"], ...], Meta(max_length=8)] = ()
    rail: Annotated[tuple[RailSpec, ...], Meta(min_length=1, max_length=16)]


class WindowSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The windows in which a check reads an answer. Windows may overlap. All lengths are in code points.

    Attributes:
        first_chars: Offset at which the first window ends. Each further window ends at twice the offset of the window
            before, up to ``stride_chars``. A value above ``stride_chars`` counts as ``stride_chars``.
        stride_chars: Distance between the ends of windows after the offset ``stride_chars``. For example, if
            ``first_chars`` is 16 and ``stride_chars`` is 64, windows end at 16, 32, 64, 128, 192, 256 and so on.
        context_chars: Maximum length of a window, at least ``stride_chars``.
        hold_chars: In gated delivery, the number of characters at the end of a window that stay hidden until a later
            window has passed its check. The last window of an answer hides none. In
            ``OutputChecks.classifier_windows``, this value has no effect.
        timeout_ms: Time limit of one check of a window.
        retries: How often a check is repeated if it fails. If the last repetition fails, too, the window counts as
            unchecked.
    """

    first_chars: Annotated[int, Meta(ge=1, le=10_000)] = 16
    stride_chars: Annotated[int, Meta(ge=1, le=10_000)] = 64
    context_chars: Annotated[int, Meta(ge=1, le=20_000)] = 320
    hold_chars: Annotated[int, Meta(ge=0, le=10_000)] = 32
    timeout_ms: Annotated[int, Meta(ge=1, le=60_000)] = 500
    retries: Annotated[int, Meta(ge=0, le=10)] = 2

    def __post_init__(self) -> None:
        """Refuse gaps between the windows. A check that reads windows would not read the text in a gap.

        Raises:
            ValueError: There are gaps between the windows.
        """
        if self.context_chars < self.stride_chars:
            raise ValueError(
                f"context_chars = {self.context_chars} is less than stride_chars = {self.stride_chars}: no window would"
                " contain the text between them"
            )


class OutputChecks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output checks.

    Attributes:
        windows: The windows in which the NeMo output rails (tier 1) read an answer.
        classifiers: The names of the classifiers (tier 2). If the list is empty, no classifier reads answers.
        classifier_windows: The windows in which the classifiers read an answer.
        max_findings: An answer with more findings than this is stopped.
        max_waiting_chars: Maximum number of characters that may follow a window while it waits for its check. If more
            follow, the check counts as failed, and the window as unchecked.
    """

    windows: WindowSpec = field(default_factory=WindowSpec)
    classifiers: Annotated[tuple[Slug, ...], Meta(max_length=8)] = ()
    classifier_windows: WindowSpec = field(
        default_factory=lambda: WindowSpec(first_chars=256, stride_chars=256, context_chars=640)
    )
    max_findings: Annotated[int, Meta(ge=1, le=1_000)] = 64
    max_waiting_chars: Annotated[int, Meta(ge=1_000, le=1_000_000)] = 65_536


class DeliveryBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for the delivery settings of a request.

    Attributes:
        modes: Allowed modes. A request for another mode gets the next stricter allowed mode. It gets ``gated``, the
            strictest mode, if no allowed mode is stricter.
        max_exposure_tokens: Maximum number of tokens that are shown and not yet checked.
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
        name: The policy's name. Logs show it next to the version, which is a hash of all files.
        about: A description in one sentence.
        rails: Input rails.
        safety: Output checks.
        delivery: Limits for the delivery settings of a request: how much unchecked text may be shown.
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
        """Check the definitions of the request classes.

        Raises:
            ValueError: The definition of a class is invalid.
        """
        self.service_classes()

    def service_classes(self) -> ServiceClasses:
        """Return all classes of requests, including the built-in classes."""
        return ServiceClasses(self.classes, self.deadlines)


class PatternSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``[[pattern]]``: a regular expression or a list of words to find in prompts and answers.

    Attributes:
        name: The rule's name, unique in the policy. If the name begins with ``pii/``, the rail ``pii`` searches prompts
            for the pattern, otherwise the rail ``secrets``.
        category: The category of the findings, such as ``email``. It is part of the input of ``findings.rego``.
        regex: A pattern in the language of ``services.policy.matching.regex``; None if ``words`` are given.
        words: Literal texts; empty if ``regex`` is given.
        max_chars: Maximum length of a match. A pattern that can match a longer text is refused.
        ignore_case: Whether upper and lower case are the same.
        folded: Whether ``words`` are also found if they are disguised (``services.policy.matching.folding``). Prompts
            are searched for them by the rail ``secrets``. Answers are searched for them only if ``nemo/config.yml``
            lists the output flow ``railbus output``.
        guard: Which characters must not stand next to a match. ``digit`` forbids digits. ``word`` forbids letters,
            digits and ``_``. ``token`` forbids the same as ``word``, and before the match also ``.``, ``%``, ``+`` and
            ``-``. ``start`` forbids the same as ``word``, but only before the match. ``none`` forbids nothing.
        validator: A check that a match must pass, such as ``luhn`` for check digits.
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
