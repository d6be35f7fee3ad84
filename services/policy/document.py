"""What stands in ``policy.toml`` and in ``patterns/*.toml``. A misspelt field is an error, not a default."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from schemas.base import Name
from schemas.requests import Mode

RailKind = Literal["admission", "secrets", "pii", "jailbreak"]
OnBroken = Literal["deny", "allow"]
Guard = Literal["none", "digit", "word", "token", "start"]
Validator = Literal["luhn", "iban", "ssn", "ipv4", "entropy"]

Ms = Annotated[int, Meta(ge=1, le=86_400_000)]
Slug = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Text = Annotated[str, Meta(min_length=1, max_length=2_000)]
Bounds = tuple[Ms, Ms]


class RailSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input rail.

    Attributes:
        name: What the verdict calls it, and what it does.
        on_broken: What it means when the rail broke or ran out of time; None takes ``rails.on_broken``.
        deadline_ms: Its own deadline, from taking up the request; None takes ``rails.deadline_ms``.
        threshold: Score from which a classifier's answer is a finding; for rails that have one.
        max_windows: Of a prompt that is longer than a classifier reads at once, so many windows are read.
    """

    name: RailKind
    on_broken: OnBroken | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    max_windows: Annotated[int, Meta(ge=1, le=1_000)] = 8


class Rails(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input rails. They run concurrently; the order is that of reports and of the serial control arm.

    Attributes:
        deadline_ms: Of every rail without its own, from taking up the request.
        on_broken: What a rail without its own setting means when it broke or ran out of time.
        recognizers: What looks for personal data besides the patterns, by name: ``presidio``.
        rail: The rails, most decisive first.
    """

    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] = 150
    on_broken: OnBroken = "deny"
    recognizers: Annotated[tuple[Literal["presidio"], ...], Meta(max_length=8)] = ()
    rail: Annotated[tuple[RailSpec, ...], Meta(min_length=1, max_length=16)]


class Windows(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a check looks at the answer, in characters (code points) of the answer's text.

    Attributes:
        first_chars: The first look; the distance then doubles until it is the stride.
        stride_chars: Distance between looks, at absolute offsets.
        context_chars: How much of the text before the offset is looked at.
        hold_chars: Gated delivery: newest characters that a look does not clear, because a phrase may be half there.
        timeout_ms: Longest wait for one look.
        retries: How often a look that broke is repeated before the text counts as unchecked.
    """

    first_chars: Annotated[int, Meta(ge=1, le=10_000)] = 16
    stride_chars: Annotated[int, Meta(ge=1, le=10_000)] = 64
    context_chars: Annotated[int, Meta(ge=1, le=20_000)] = 320
    hold_chars: Annotated[int, Meta(ge=0, le=10_000)] = 32
    timeout_ms: Annotated[int, Meta(ge=1, le=60_000)] = 500
    retries: Annotated[int, Meta(ge=0, le=10)] = 2


class Safety(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output checks.

    Attributes:
        windows: Tier 1, the NeMo output rails.
        classifiers: Tier 2, by name; none leaves tier 2 out.
        classifier_windows: When tier 2 looks.
        max_findings: More findings than this in one answer stop it.
        max_waiting_chars: More text than this waiting for a check that does not come counts as unchecked.
    """

    windows: Windows = field(default_factory=Windows)
    classifiers: Annotated[tuple[Slug, ...], Meta(max_length=8)] = ()
    classifier_windows: Windows = field(
        default_factory=lambda: Windows(first_chars=256, stride_chars=256, context_chars=640)
    )
    max_findings: Annotated[int, Meta(ge=1, le=1_000)] = 64
    max_waiting_chars: Annotated[int, Meta(ge=1_000, le=1_000_000)] = 65_536


class DeliveryBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request may choose.

    Attributes:
        modes: Modes a request may ask for; any other becomes the nearest stricter one.
        max_exposure_tokens: Largest exposure a request may ask for.
        min_hold_tokens: ``windowed``: fewest tokens held back.
        min_hold_ms: ``windowed``: shortest time held back, in milliseconds.
    """

    modes: Annotated[tuple[Mode, ...], Meta(min_length=1)] = ("optimistic", "windowed", "gated")
    max_exposure_tokens: Annotated[int, Meta(ge=1, le=100_000)] = 64
    min_hold_tokens: Annotated[int, Meta(ge=0, le=10_000)] = 0
    min_hold_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class DeadlineBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Least and largest deadline a request may ask for, in milliseconds.

    Attributes:
        verdict_ms: For the verdict.
        ttft_ms: For the first content token.
        stall_ms: For the longest silence.
        total_ms: For the request; its largest is also how far services read back after a restart.
    """

    verdict_ms: Bounds = (50, 10_000)
    ttft_ms: Bounds = (20, 30_000)
    stall_ms: Bounds = (100, 30_000)
    total_ms: Bounds = (500, 120_000)


class PolicyDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``policy.toml``.

    Attributes:
        name: The policy's name; part of its version.
        about: One sentence for people.
        rails: Input rails.
        safety: Output checks.
        delivery: What a request may choose.
        deadlines: What a request may choose.
        refusals: Reason -> what a denied user is shown; ``default`` must be there.
        replacements: Category -> what stands for removed text; ``default`` and ``stop`` must be there.
    """

    name: Slug
    about: Text
    rails: Rails
    safety: Safety = field(default_factory=Safety)
    delivery: DeliveryBounds = field(default_factory=DeliveryBounds)
    deadlines: DeadlineBounds = field(default_factory=DeadlineBounds)
    refusals: dict[str, Text]
    replacements: dict[str, Text]


class PatternSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[pattern]]``: a regular expression or a list of words, looked for in prompts and answers.

    Attributes:
        name: The rule's name, unique in the policy.
        category: What ``findings.rego`` decides by.
        regex: In the pattern language of ``services.policy.regex``; None when ``words`` are given.
        words: Literals; empty when ``regex`` is given.
        max_chars: Longest match; the computed bound must not be above it.
        ignore_case: Upper and lower case are the same.
        folded: ``words`` are also looked for in disguise (``services.policy.folding``), window by window.
        guard: Which neighbours forbid a match: ``digit`` digits; ``word`` letters, digits and ``_``; ``token`` those
            and, before it, ``.%+-``; ``start`` as ``word``, but only before it.
        validator: A further check on what was matched.
        examples: Each is matched as a whole.
        counterexamples: Nothing in it is matched.
    """

    name: Name
    category: Slug
    regex: Annotated[str, Meta(min_length=1, max_length=2_000)] | None = None
    words: Annotated[tuple[Text, ...], Meta(max_length=20_000)] = ()
    max_chars: Annotated[int, Meta(ge=1, le=512)]
    ignore_case: bool = False
    folded: bool = False
    guard: Guard = "word"
    validator: Validator | None = None
    examples: Annotated[tuple[Text, ...], Meta(min_length=1)]
    counterexamples: Annotated[tuple[Text, ...], Meta(min_length=1)]


class PatternFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of ``patterns/``."""

    pattern: Annotated[tuple[PatternSpec, ...], Meta(max_length=1_000)]
