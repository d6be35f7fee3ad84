import pytest

from services.cli.tree import extras
from services.runtime.errors import UserError


def test_what_is_there_is_enough(monkeypatch):
    monkeypatch.setattr(extras, "GOVERNANCE_MODULES", ("json", "email.mime"))
    monkeypatch.setattr(extras, "VERTEX_MODULES", ("json",))
    monkeypatch.setattr(extras, "EMBEDDED", ("json",))
    monkeypatch.setattr(extras, "TRACER_MODULES", ("json",))
    extras.require_otel()
    extras.need_embedded()
    extras.require_governance(instead="")
    extras.require_vertex()


def test_what_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(extras, "GOVERNANCE_MODULES", ("json", "no_such_module", "no_such_package.part"))
    monkeypatch.setattr(extras, "VERTEX_MODULES", ("json.no_such_part",))
    with pytest.raises(UserError) as told:
        extras.require_governance(instead=", or --no-governed")
    assert str(told.value) == (
        "rails and safety need no_such_module, no_such_package.part: pip install 'railbus[governance]',"
        " or --no-governed"
    )
    monkeypatch.setattr(extras, "EMBEDDED", ("no_such_module",))
    with pytest.raises(UserError, match=r"engine llama needs no_such_module: pip install 'railbus\[embedded\]', or"):
        extras.need_embedded()
    monkeypatch.setattr(extras, "TRACER_MODULES", ("json", "no_such_module"))
    with pytest.raises(UserError, match=r"traces need no_such_module: pip install 'railbus\[otel\]'"):
        extras.require_otel()
    with pytest.raises(UserError, match=r"json\.no_such_part: pip install 'railbus\[vertex\]'"):
        extras.require_vertex()
