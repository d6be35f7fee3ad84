"""Evaluate Rego in this process with regorus. A decision takes about 12 us."""

import json
import re
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import regorus

from services.policy.errors import BrokenPolicy, PolicyFault, RulingError

_FAULT = re.compile(r"-->\s*(?P<path>[^\n]+?):(?P<line>\d+):\d+\n.*?\nerror:\s*(?P<what>[^\n]+)", re.DOTALL)

_UNDEFINED = "<undefined>"

_Machines = dict[str, Any]


class _Thread(threading.local):
    # A machine must be freed by the thread that made it, but the garbage collector may free a ``Rego`` on any thread.
    # So machines are kept here, and each thread drops those of freed objects when it makes the next machine.
    def __init__(self) -> None:
        self.machines: dict[weakref.ref[Rego], _Machines] = {}

    def machines_of(self, key: "weakref.ref[Rego]") -> _Machines:
        found = self.machines.get(key)
        if found is None:
            self.machines = {each: kept for each, kept in self.machines.items() if each() is not None}
            found = self.machines[key] = {}
        return found


_thread = _Thread()


class Rego:
    """Compiled Rego modules with their data. Several threads may use one object."""

    def __init__(self, modules: Mapping[str, str], data: Any, entry_points: tuple[str, ...]) -> None:
        """Compile the modules.

        Args:
            modules: Rego v1 source by file name.
            data: The content of ``rego/data.json``. The modules read it as ``data``.
            entry_points: Rules that ``ask`` can evaluate, such as ``data.railbus.admission.decision``.

        Raises:
            BrokenPolicy: A module does not compile. The error names file and line.
        """
        self.modules = dict(modules)
        self.data = data
        self._data_json = json.dumps(data)
        self._programs = {point: _compile(self._data_json, modules, point) for point in entry_points}
        self._key = weakref.ref(self)

    def ask(self, entry_point: str, document: Mapping[str, Any]) -> Any:
        """Evaluate a rule with ``document`` as Rego's input. Return None if the rule's value is undefined.

        Raises:
            RulingError: The evaluation failed.
        """
        try:
            machine = self._machine(entry_point)
            machine.set_input_json(json.dumps(document))
            answer = json.loads(machine.execute())
        except (RuntimeError, ValueError, TypeError, RecursionError) as error:
            raise RulingError(f"{entry_point}: {_first_line(str(error))}") from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            _thread.machines_of(self._key).clear()  # a panic may leave a machine in an invalid state
            raise RulingError(f"{entry_point}: {_first_line(str(error))}") from None
        return None if answer == _UNDEFINED else answer

    def _machine(self, entry_point: str) -> Any:
        machines = _thread.machines_of(self._key)
        if entry_point not in machines:
            machine = machines[entry_point] = regorus.Rvm()
            program, _ = regorus.Program.deserialize_binary(self._programs[entry_point])
            machine.load_program(program)
            machine.set_data_json(self._data_json)
        return machines[entry_point]


def _compile(data_json: str, modules: Mapping[str, str], entry_point: str) -> bytes:
    try:
        program = regorus.Program.compile_from_modules(data_json, list(modules.items()), [entry_point])
    except (RuntimeError, ValueError) as error:
        raise BrokenPolicy([_fault(str(error), entry_point, modules)]) from None
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise BrokenPolicy([_fault(str(error), entry_point, modules)]) from None
    compiled: bytes = program.serialize_binary()  # the program itself must not be used in another thread
    return compiled


def _is_panic(error: BaseException) -> bool:
    # A panic of regorus raises an error that is not an ``Exception``, and whose class has no public name.
    return type(error).__name__ == "PanicException"


def _fault(message: str, entry_point: str, modules: Mapping[str, str]) -> PolicyFault:
    found = _FAULT.search(message)
    if found:
        return PolicyFault(found["path"], int(found["line"]), found["what"])
    name = next(iter(modules), "rego")
    return PolicyFault(name, 0, f"{entry_point}: {_first_line(message)}")


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
