import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.physics.catalogue.configs import model_from_config
from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.gpus import gpu as gpu_named
from services.physics.catalogue.models import Model
from services.physics.catalogue.models import model as model_named
from services.runtime.errors import UserError

CatalogueEntry = TypeVar("CatalogueEntry")


def find_gpu(name: str) -> Gpu:
    """Return the accelerator with this name.

    Raises:
        UserError: The name is not in the catalogue.
    """
    return _or_user_error(lambda: gpu_named(name))


def find_model(name: str) -> Model:
    """Return a model by its name in the catalogue, or by the path of a ``config.json`` or of its folder.

    Raises:
        UserError: There is no such model or file, or the file does not describe a supported model.
    """
    path = Path(name)
    try:
        if path.is_dir():
            path /= "config.json"
    except OSError as error:  # such as a name that is too long for a file
        raise UserError(f"{name[:64]}: {error.strerror}; give a model's name, or its config.json") from None
    if path.suffix != ".json" and not path.is_file():
        if "/" in name:
            raise UserError(f"{name}: there is no such file or folder; give a model's name, or its config.json")
        return _or_user_error(lambda: model_named(name))
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a model's name, or its config.json") from None
    except ValueError:
        raise UserError(f"{path}: is not JSON; give a model's config.json") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: is not a JSON object; give a model's config.json")
    label = path.parent.name or path.stem if path.name == "config.json" else path.stem
    return _or_user_error(lambda: model_from_config(config, name=label, source=str(path)))


def _or_user_error(look_up: Callable[[], CatalogueEntry]) -> CatalogueEntry:
    try:
        return look_up()
    except ValueError as error:
        raise UserError(str(error)) from None
