"""Speed up the creation of frozen dataclass objects, of which a simulation creates thousands."""

import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Final

FEWEST_FIELDS: Final = 3
"""Minimum number of fields of a class whose ``__init__`` is replaced. With fewer fields, the two changes of the
object's class cost about as much as the faster ``__init__`` saves."""

_SET_CLASS: Final = object.__dict__["__class__"].__set__


@cache
def store_directly() -> int:
    """Replace ``__init__`` of the project's frozen dataclasses by a faster one. Return the number of classes."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] in {"schemas", "services"}]
    classes = {each for module in modules for each in vars(module).values() if _is_fit(each)}
    for each in classes:
        each.__init__ = _init(each)
    return len(classes)


def _is_fit(found: Any) -> bool:
    if not (isinstance(found, type) and is_dataclass(found)) or found.__subclasses__():
        return False
    parameters = found.__dataclass_params__  # type: ignore[attr-defined]
    slots = "__slots__" in vars(found) and found.__dictoffset__ == 0
    plain = all(each.init for each in fields(found)) and len(found.__dataclass_fields__) == len(fields(found))
    return bool(parameters.frozen and parameters.init and slots and plain and len(fields(found)) >= FEWEST_FIELDS)


def _init(of: type) -> Any:
    # Change the class of the object to a twin that is not frozen, assign the fields, and change the class back.
    names: dict[str, Any] = {"of": of, "set_class": _SET_CLASS, "twin": _twin(of), "MISSING": MISSING}
    positional = [_parameter(each, names) for each in fields(of) if not each.kw_only]
    by_name = [_parameter(each, names) for each in fields(of) if each.kw_only]
    parameters = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    stores = [f" self.{each.name} = {_value(each)}" for each in fields(of)]
    finish = [" self.__post_init__()"] if hasattr(of, "__post_init__") else []
    lines = [f"def __init__({parameters}):", " set_class(self, twin)", *stores, " self.__class__ = of", *finish]
    exec("\n".join(lines), names)  # noqa: S102 - ``dataclasses`` does the same; the code contains only names of fields
    init = names["__init__"]
    init.__qualname__ = f"{of.__qualname__}.__init__"  # error messages contain this name
    return init


def _twin(of: type) -> type:
    unlocked = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(of.__name__, (of,), unlocked)


def _parameter(field: "Field[Any]", names: dict[str, Any]) -> str:
    if field.default_factory is not MISSING:
        names[f"make_{field.name}"] = field.default_factory
        return f"{field.name}=MISSING"
    if field.default is MISSING:
        return field.name
    names[f"default_{field.name}"] = field.default
    return f"{field.name}=default_{field.name}"


def _value(field: "Field[Any]") -> str:
    if field.default_factory is MISSING:
        return field.name
    return f"make_{field.name}() if {field.name} is MISSING else {field.name}"
