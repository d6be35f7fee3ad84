import pytest

from services.cli import packages
from services.runtime.errors import UserError


def test_what_is_there_is_enough(monkeypatch):
    monkeypatch.setattr(packages, "GOVERNANCE", ("json", "email.mime"))
    monkeypatch.setattr(packages, "VERTEX", ("json",))
    packages.need_governance(instead="")
    packages.need_vertex()


def test_what_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(packages, "GOVERNANCE", ("json", "no_such_module", "no_such_package.part"))
    monkeypatch.setattr(packages, "VERTEX", ("json.no_such_part",))
    with pytest.raises(UserError) as told:
        packages.need_governance(instead=", or --no-governed")
    assert str(told.value) == (
        "rails and safety need no_such_module, no_such_package.part: pip install -r requirements/governance.txt,"
        " or --no-governed"
    )
    with pytest.raises(UserError, match=r"json\.no_such_part: pip install -r requirements/vertex\.txt"):
        packages.need_vertex()
