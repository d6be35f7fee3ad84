"""Test that the access control lists for Kafka allow each role what the registry says, and nothing more."""

import shlex
from collections import defaultdict

import pytest

from schemas.acls import TOPIC_PREFIX, commands, grants
from schemas.registry import GROUPS, OWN_TOPICS, ROLES, reads, writes
from schemas.topics import REQUESTS_VERTEX, STREAMS, TOPICS
from services.audit.service import GROUP as AUDIT_GROUP
from services.cli.__main__ import main
from services.edge.log.partition_follower import GROUP as EDGE_GROUP
from services.ledger.settings import Settings as LedgerSettings
from services.rails.service import GROUP as RAILS_GROUP
from services.rails.service import GROUP_BATCH as RAILS_BATCH_GROUP
from services.router.service import GROUP as ROUTER_GROUP
from services.safety.service import GROUP as SAFETY_GROUP
from services.tracer.service import GROUP as TRACER_GROUP


@pytest.mark.parametrize("role", ROLES)
def test_a_role_gets_its_own_topics_and_groups(role):
    found = defaultdict(set)
    for grant in grants(role):
        for operation in grant.operations:
            found[grant.resource, operation] |= set(grant.names)
    own = set(OWN_TOPICS.get(role, ()))
    assert found["topic", "Read"] == set(reads(role)) | own
    assert found["topic", "Write"] == set(writes(role)) | own
    assert found["group", "Read"] == set(GROUPS[role])
    only_seen = {operation for resource, operation in found if TOPIC_PREFIX in found[resource, operation]}
    administers = {"Create", "Alter", "AlterConfigs"} if role == "operator" else set()
    assert only_seen == {"Describe", "DescribeConfigs"} | administers
    assert found["topic", "Create"] == own | ({TOPIC_PREFIX} if role == "operator" else set())


def test_no_grant_by_a_prefix_lets_read_or_write():
    wide = [grant for role in ROLES for grant in grants(role) if grant.prefixed]
    assert not {"Read", "Write"} & {operation for grant in wide for operation in grant.operations}
    assert all(topic.name.startswith(TOPIC_PREFIX) for topic in TOPICS)


def test_apps_cannot_write_the_stream_log_nor_ask_the_cloud():
    assert {role for role in ROLES if REQUESTS_VERTEX.name in writes(role)} == {"router"}
    assert not {"app", "edge", "operator"} & {role for role in ROLES if STREAMS.name in writes(role)}


def test_the_groups_are_those_that_the_services_join():
    assert GROUPS["edge"] == (EDGE_GROUP,)
    assert GROUPS["rails"] == (RAILS_GROUP, RAILS_BATCH_GROUP)
    assert (GROUPS["router"], GROUPS["safety"]) == ((ROUTER_GROUP,), (SAFETY_GROUP,))
    assert GROUPS["generator"] == ("generator", "generator-batch"), "the worker's name, and -batch"
    assert GROUPS["vertex"] == ("vertex",)
    assert (GROUPS["audit"], GROUPS["tracer"]) == ((AUDIT_GROUP,), (TRACER_GROUP,))
    assert GROUPS["ledger"] == (LedgerSettings().ledger_group,)
    assert OWN_TOPICS["ledger"] == (f"{LedgerSettings().ledger_group}-entries-changelog",)


def test_a_command_survives_a_shell():
    (first, *_) = commands("User:CN=it's me,O=", "a:1,b:2", "my file", ["safety"])
    assert "User:CN=it's me,O=safety" in shlex.split(first)
    assert shlex.split(first)[:5] == ["kafka-acls.sh", "--bootstrap-server", "a:1,b:2", "--command-config", "my file"]


def test_the_command_prints_a_script(capsys):
    assert main(["acls", "--role", "vertex", "--role", "rails", "--kafka", "k:1"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "set -e"
    assert rest == list(commands("User:railbus-", "k:1", "admin.properties", ["vertex", "rails"]))
