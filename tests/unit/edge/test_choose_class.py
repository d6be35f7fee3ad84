"""Test which class a request gets from its header, fields, OpenAI tier or policy, and which requests are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.edge.errors import ApiError
from services.edge.requests.parse import parse_chat_request
from services.runtime.classes.service_classes import ClassSpec, DefaultDeadlines, ServiceClasses

HI = [{"role": "user", "content": "hi"}]
CLASSES = ServiceClasses(
    {
        "support": ClassSpec(default_tenants=("acme",), allowed_tenants=("acme", "beta"), priority=3),
        "nightly": ClassSpec(lane="batch", default_models=("big",)),
        "tiny": ClassSpec(
            default_tenants=("gamma",), allowed_models=("m",), priority=1, deadlines=DefaultDeadlines(ttft_ms=300)
        ),
        "urgent": ClassSpec(default_models=("fast",), allowed_tenants=("acme",), priority=2),
    }
)
NAMES = st.sampled_from([None, *CLASSES.names])


def parsed(tenant="t", header=None, **body):
    return parse_chat_request({"messages": HI} | body, CLASSES, tenant=tenant, class_header=header)


def event(made, tenant):
    return made.request(request_id="x", tenant=tenant, at_us=1, source="s")


@pytest.mark.parametrize(
    ("chosen", "name", "lane"),
    [
        ({}, "chat", "interactive"),
        ({"header": "voice"}, "voice", "interactive"),
        ({"railbus": {"service_class": "voice"}}, "voice", "interactive"),
        ({"service_tier": "voice"}, "voice", "interactive"),
        ({"service_tier": "flex"}, "batch", "batch"),
        ({"service_tier": "auto"}, "chat", "interactive"),
        ({"service_tier": "priority", "header": "voice"}, "voice", "interactive"),
        ({"railbus": {"lane": "batch"}}, "batch", "batch"),
        ({"tenant": "acme"}, "support", "interactive"),
        ({"tenant": "acme", "railbus": {"lane": "batch"}}, "batch", "batch"),
        ({"tenant": "acme", "header": "chat"}, "chat", "interactive"),
        ({"tenant": "acme", "model": "big"}, "support", "interactive"),
        ({"model": "big"}, "nightly", "batch"),
        ({"tenant": "gamma", "model": "m"}, "tiny", "interactive"),
        ({"tenant": "gamma", "model": "big"}, "nightly", "batch"),
        ({"tenant": "gamma", "model": "fast"}, "chat", "interactive"),
        ({"tenant": "beta", "model": "fast"}, "chat", "interactive"),
    ],
)
def test_a_class_is_chosen_and_every_reader_of_the_log_sees_the_same(chosen, name, lane):
    made = parsed(**chosen)
    request = event(made, chosen.get("tenant", "t"))
    assert (CLASSES.of_request(request).name, request.lane) == (name, lane)
    assert request.deadlines == CLASSES.get(name).deadlines
    assert request.priority == CLASSES.get(name).priority


@pytest.mark.parametrize(
    ("chosen", "status", "code", "param", "said"),
    [
        ({"header": "gold"}, 400, "unknown_class", "X-Railbus-Class", "the classes are batch, chat, nightly, support"),
        ({"service_tier": "gold"}, 400, "unknown_class", "service_tier", "'gold'"),
        ({"header": "voice", "service_tier": "flex"}, 400, "invalid_value", "service_tier", "different classes"),
        ({"header": "support"}, 403, "class_not_allowed", "X-Railbus-Class", "support"),
        ({"header": "voice", "railbus": {"lane": "batch"}}, 400, "invalid_value", "railbus.lane", "interactive"),
    ],
)
def test_a_refusal_names_the_place_and_the_remedy(chosen, status, code, param, said):
    with pytest.raises(ApiError) as refused:
        parsed(**chosen)
    error = refused.value
    assert (error.status, error.code, error.param) == (status, code, param)
    assert said in error.message


def test_a_class_that_the_log_claims_without_being_allowed_is_not_believed():
    made = event(parsed(tenant="beta", header="support"), "beta")
    assert CLASSES.of_request(made).name == "support"
    assert CLASSES.of_request(event(parsed(tenant="beta", header="support"), "t")).name == "chat"


@given(
    name=NAMES, lane=st.sampled_from([None, "interactive", "batch"]),
    tenant=st.sampled_from(["acme", "beta", "gamma", "t"]), model=st.sampled_from(["m", "big", "fast"]),
)  # fmt: skip
def test_whatever_is_asked_for_the_log_says_what_the_edge_decided(name, lane, tenant, model):
    extension = {} if lane is None else {"railbus": {"lane": lane}}
    wanted = CLASSES.get(name or "")
    if wanted is not None and ((lane or wanted.lane) != wanted.lane or not wanted.allows(tenant, model)):
        with pytest.raises(ApiError):
            parsed(tenant, name, model=model, **extension)
        return
    made = parsed(tenant, name, model=model, **extension)
    request = event(made, tenant)
    found = CLASSES.of_request(request)
    assert found.name == (name or found.name)
    assert found.lane == (lane or found.lane)
    assert CLASSES.deadlines_of(request) == request.deadlines == found.deadlines
    assert request.priority == found.priority


def test_two_classes_cannot_be_the_usual_one_of_a_tenant():
    with pytest.raises(ValueError, match=r"classes\.b\.default_tenants: 'acme' is named by a already"):
        ServiceClasses({"a": ClassSpec(default_tenants=("acme",)), "b": ClassSpec(default_tenants=("acme",))})
    with pytest.raises(ValueError, match=r"classes\.chat: it must be allowed to all"):
        ServiceClasses({"chat": ClassSpec(allowed_tenants=("acme",))})


def test_the_tier_flex_means_the_policys_class_of_that_name():
    classes = ServiceClasses({"flex": ClassSpec(priority=5)})
    made = parse_chat_request({"messages": HI, "service_tier": "flex"}, classes)
    assert (made.template.service_class, made.lane) == ("flex", "interactive")
