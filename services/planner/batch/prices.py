"""Prices, rate limits and quality scores of models, read from a TOML file that the user may edit.

All prices are in US dollars.
"""

import tomllib
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import msgspec

from services.physics.catalogue.gpus import GPUS
from services.runtime.errors import UserError

DEFAULT_FILE: Final = "prices.toml"
MAX_BYTES: Final = 2**20

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Source = Annotated[str, msgspec.Meta(min_length=1)]


class Energy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    per_kwh: NotNegative
    source: Source


class OwnedGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Accelerators that the user owns.

    Attributes:
        gpu: Name in the catalogue.
        count: Number of accelerators that the user already has.
        price: Price of one accelerator. If a way needs more than ``count`` accelerators, its cost includes this price
            for each additional one.
        watts: Power of one accelerator under load.
    """

    gpu: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    price: NotNegative
    watts: NotNegative
    source: Source


class RentedGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An accelerator that can be rented by the hour. Prices are in US dollars.

    Attributes:
        gpu: Name in the catalogue.
        per_hour: Usual price of an hour.
        low: Lowest price of an hour.
        high: Highest price of an hour.
        setup_minutes: Time of the set-up before a job, which is paid too.
    """

    gpu: str
    per_hour: Positive
    low: Positive
    high: Positive
    setup_minutes: NotNegative = 15.0
    source: Source


class ApiOffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that a provider offers through an API and that is paid per token. Prices are in US dollars.

    Attributes:
        model: Name of the model in ``PriceFile.scores``.
        input: Price of a million prompt tokens.
        output: Price of a million answer tokens.
        cached_input: Price of a million prompt tokens from the provider's prompt cache. None means that they cost as
            much as other prompt tokens (``input``).
        tokens_per_minute: Rate limit for prompts and answers together.
        requests_per_day: Rate limit; None means no limit.
        batch_discount: Share by which the provider's batch API is cheaper (0 to 1); None if there is no batch API.
        batch_hours: Time within which the provider promises all answers of a batch.
        queue_tokens: Maximum number of tokens of all requests that wait in the batch API; None means no limit.
    """

    name: str
    model: str
    input: NotNegative
    output: NotNegative
    cached_input: NotNegative | None = None
    requests_per_minute: Positive
    tokens_per_minute: Positive
    requests_per_day: Positive | None = None
    batch_discount: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    batch_hours: Positive = 24.0
    queue_tokens: Positive | None = None
    source: Source


class PriceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a price file. ``scores`` has the quality score of each model."""

    as_of: date
    energy: Energy
    owned: tuple[OwnedGpu, ...] = ()
    rented: tuple[RentedGpu, ...] = ()
    api: tuple[ApiOffer, ...] = ()
    scores: Mapping[str, NotNegative] = {}

    def owned_gpu(self, name: str) -> OwnedGpu:
        """Return the entry of an accelerator.

        Raises:
            UserError: The file has no entry for this accelerator.
        """
        found = next((each for each in self.owned if each.gpu == name), None)
        if found is None:
            raise UserError(
                f"the prices have no [[owned]] entry for {name}: add one (`railbus plan batch --show-prices` prints "
                "the file, --prices FILE takes yours), or plan without hardware of your own: --gpu none"
            )
        return found


def default_text() -> str:
    return files(__package__).joinpath(DEFAULT_FILE).read_text(encoding="utf-8")


def read_prices(path: Path | None) -> PriceFile:
    """Return the prices in the file ``path``. If ``path`` is None, return the default prices.

    Raises:
        UserError: The file cannot be read, or an entry is wrong.
    """
    name = "the prices" if path is None else str(path)
    try:
        if path is not None and path.stat().st_size > MAX_BYTES:
            raise UserError(f"--prices {path}: more than {MAX_BYTES // 2**10} KiB, which no price list needs")
        text = default_text() if path is None else path.read_text(encoding="utf-8")
        prices = msgspec.convert(tomllib.loads(text), PriceFile)
    except OSError as error:
        raise UserError(f"--prices {path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: is not TOML ({error})") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: {error}; `railbus plan batch --show-prices` prints a whole file") from None
    for gpu in [each.gpu for each in prices.owned] + [each.gpu for each in prices.rented]:
        if gpu not in GPUS:
            raise UserError(f"{name}: GPU {gpu!r} is not in the catalogue; it has {', '.join(GPUS)}")
    for rented in prices.rented:
        if not rented.low <= rented.per_hour <= rented.high:
            raise UserError(f"{name}: {rented.gpu}: per_hour must be within low and high")
    return prices
