"""The plan of an experiment, made from the flags of ``railbus tune``."""

from typing import Annotated, Literal

import msgspec

from services.runtime.settings import without_secrets
from services.tuner.candidates import Surroundings, candidates
from services.tuner.experiment import (
    ExperimentError,
    Metric,
    Rules,
    SettingsChange,
    Target,
    parse_metric,
    parse_settings,
    parse_target,
)
from services.tuner.guide import ITEMS

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class TunePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An experiment, as the command line writes it to the tuner's standard input.

    Attributes:
        settings: Settings of the baseline, as ``NAME=VALUE``.
        tries: Changes to try first. Each is one or more settings, separated by spaces.
        lossy: Further changes to try, which may alter answers.
        only: Keys of items of ``services.tuner.guide``, such as ``batching``. Of the changes in
            ``services.tuner.candidates``, only those for these items are tried. Empty means that all are tried.
        own_list: Whether to try the changes that ``services.tuner.candidates`` lists for the engine.
        models: Other files or folders of the model to try, such as quantized ones.
        targets: Values of metrics, as ``METRIC=NUMBER``. The search ends when all of these values are reached.
        accepted: The worst value that is accepted for a metric, as ``METRIC=NUMBER``.
        budget_min: Number of minutes after which no further change is tried; None means no limit.
        shared: Length of the prefix that all prompts have in common, as a share of a prompt.
        margin: A change is kept only if the whole confidence interval of its relative gain is above this value.
        max_loss: Largest accepted loss of the answers' quality, as a share. The loss is the relative rise of the
            perplexity, or the drop in the share of solved tasks if the engine reports no log-probabilities.
        apart: Whether only one engine may be in memory at a time.
        keep: Whether engines stay loaded between rounds.
        find: ``batch`` finds the best batch size instead of trying changes.
        slo_ttft_ms: With ``find``, limit of the p99 of the time to the first token.
        slo_token_ms: With ``find``, limit of the p99 of the time between tokens.
    """

    engine: Literal["simulated", "llama", "vllm", "openai"]
    settings: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()
    lossy: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    own_list: bool = True
    models: tuple[str, ...] = ()
    objective: str = "answer_p50_ms"
    targets: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    budget_min: Annotated[float, msgspec.Meta(gt=0, le=10_080)] | None = None
    requests: Annotated[int, msgspec.Meta(ge=1, le=500_000)] = 1_000
    rounds: Annotated[int, msgspec.Meta(ge=3, le=64)] = 8
    prompt: Annotated[int, msgspec.Meta(ge=1, le=32_768)] = 64
    shared: Share = 0.5
    output: Annotated[int, msgspec.Meta(ge=2, le=4_096)] = 16
    at_once: Annotated[int, msgspec.Meta(ge=1, le=256)] = 2
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 1
    margin: Share = 0.02
    max_loss: Share = 0.01
    apart: bool = False
    keep: bool = False
    find: Literal["", "batch"] = ""
    max_batch: Annotated[int, msgspec.Meta(ge=2, le=256)] = 32
    slo_ttft_ms: Annotated[float, msgspec.Meta(gt=0)] = 200.0
    slo_token_ms: Annotated[float, msgspec.Meta(gt=0)] = 50.0
    out: str = "tune"

    def base(self) -> dict[str, str]:
        return {"RAILBUS_ENGINE": self.engine, **parse_settings(self.settings)}

    def rules(self) -> Rules:
        accepted = [parse_target(text) for text in self.accepted]
        return Rules(objective=self.metric(), margin=self.margin, accepted=accepted, max_loss=self.max_loss)

    def metric(self) -> Metric:
        return parse_metric(self.objective)

    def goals(self) -> list[Target]:
        return [parse_target(text) for text in self.targets]

    def changes(self, around: Surroundings) -> list[SettingsChange]:
        """Return the changes to try: first ``tries``, then ``lossy``, then those that ``candidates`` lists."""
        unknown = set(self.only) - set(ITEMS)
        if unknown:
            raise ExperimentError(f"--only {min(unknown)!r}: choose among {', '.join(ITEMS)}")
        own = [_own(text, lossy=False) for text in self.tries] + [_own(text, lossy=True) for text in self.lossy]
        listed = candidates(around) if self.own_list else []
        found = own + [change for change in listed if not self.only or change.item in self.only]
        if not found:
            raise ExperimentError(
                f"there is nothing to try on engine {self.engine}: name a change with --try NAME=VALUE"
            )
        return found


def _own(text: str, *, lossy: bool) -> SettingsChange:
    item, colon, rest = text.partition(":")
    if not colon or item not in ITEMS:
        item, rest = "quantization" if lossy else "batching", text
    settings = parse_settings(rest.split())
    if not settings:
        raise ExperimentError("--try is empty: give a setting, such as RAILBUS_LLAMA_THREADS=2")
    name = " ".join(
        f"{key.removeprefix('RAILBUS_').lower()}={value}" for key, value in without_secrets(settings).items()
    )
    return SettingsChange(name=name, settings=settings, item=item, lossy=lossy)
