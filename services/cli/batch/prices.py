import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import msgspec

from services.cli.batch.progress import TokenPrices
from services.runtime.errors import UserError

PACKAGE: Final = "services.planner.batch"
FILE: Final = "prices.toml"

NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class _Api(msgspec.Struct, frozen=True):
    name: str
    input: NotNegative
    output: NotNegative
    cached_input: NotNegative | None = None


class _PriceList(msgspec.Struct, frozen=True):
    api: tuple[_Api, ...] = ()


def token_prices(name: str | None, file: Path | None) -> TokenPrices:
    """Return the token prices of the API ``name``, or unknown prices if ``name`` is None.

    Raises:
        UserError: The price list cannot be read, or has no such API.
    """
    if name is None:
        return TokenPrices()
    try:
        text = (file or files(PACKAGE).joinpath(FILE)).read_text(encoding="utf-8")
        apis = {api.name: api for api in msgspec.convert(tomllib.loads(text), _PriceList).api}
    except (OSError, ValueError) as error:
        raise UserError(f"--prices {file}: {getattr(error, 'strerror', None) or error}") from None
    if name not in apis:
        raise UserError(f"the price {name!r} is not in the list: give one of {'; '.join(sorted(apis))}")
    api = apis[name]
    return TokenPrices(api.input, api.output, api.cached_input)
