"""Apply the topics and rights on standard input to a Kafka, and report on each; run in a broker's pod.

In: `{"topics": [{name, partitions, replicas, config}], "gone": [name], "users": {principal: [acl]}}`. Out: an error, or
an empty string, for each topic and user. What already matches is left alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

LIMIT = 20.0
CLIENT: dict[str, str | int | float | bool] = {
    "bootstrap.servers": "localhost:9093",
    "security.protocol": "SSL",
    "ssl.ca.location": "/etc/kafka-certificates/ca.crt",
    "ssl.certificate.location": "/etc/kafka-certificates/admin.crt",
    "ssl.key.location": "/etc/kafka-certificates/admin.key",
}
TYPES = {"topic": "TOPIC", "group": "GROUP", "cluster": "BROKER", "transactionalId": "TRANSACTIONAL_ID"}
# Strimzi's name of an operation → librdkafka's.
OPERATIONS = {"IdempotentWrite": "IDEMPOTENT_WRITE", "DescribeConfigs": "DESCRIBE_CONFIGS"} | {
    "AlterConfigs": "ALTER_CONFIGS",
    "ClusterAction": "CLUSTER_ACTION",
}


def main() -> None:
    """Apply standard input once."""
    wanted = json.load(sys.stdin)
    admin = AdminClient(CLIENT)
    existing = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=LIMIT).topics.items()}
    for name in wanted["gone"]:
        if name in existing:
            admin.delete_topics([name])[name].result(LIMIT)
    topics = {each["name"]: said(topic, admin, existing, each) for each in wanted["topics"]}
    users = {who: said(rights, admin, who, acls) for who, acls in wanted["users"].items()}
    json.dump({"topics": topics, "users": users}, sys.stdout)


def said(act: Any, *arguments: Any) -> str:
    """Call `act`; return Kafka's error, or an empty string."""
    try:
        act(*arguments)
    except KafkaException as error:
        return str(error.args[0])
    return ""


def topic(admin: AdminClient, existing: dict[str, int], wanted: dict[str, Any]) -> None:
    """Create the topic, or add its missing partitions and set its configuration."""
    name, partitions, config = wanted["name"], wanted["partitions"], wanted["config"]
    if name not in existing:
        new = NewTopic(name, partitions, wanted["replicas"], config=config)
        admin.create_topics([new])[name].result(LIMIT)
        return
    if existing[name] < partitions:
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(LIMIT)
    if config:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        for future in admin.incremental_alter_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)]
        ).values():
            future.result(LIMIT)


def rights(admin: AdminClient, who: str, acls: list[dict[str, Any]]) -> None:
    """Give the principal these rights, and revoke all others."""
    every: Any = None
    mine = AclBindingFilter(
        ResourceType.ANY, every, ResourcePatternType.ANY, who, every, AclOperation.ANY, AclPermissionType.ANY
    )
    has = {binding: _filter(binding) for binding in admin.describe_acls(mine).result(LIMIT)}
    wanted = {binding for acl in acls for binding in _bindings(who, acl)}
    for futures in (
        admin.create_acls(sorted(wanted - set(has), key=str)) if wanted - set(has) else {},
        admin.delete_acls([each for binding, each in has.items() if binding not in wanted])
        if set(has) - wanted
        else {},
    ):
        for future in futures.values():
            future.result(LIMIT)


def _bindings(who: str, acl: dict[str, Any]) -> list[Any]:
    resource = acl["resource"]
    kind = ResourceType[TYPES[resource["type"]]]
    name = resource.get("name", "kafka-cluster")
    pattern = ResourcePatternType.PREFIXED if resource.get("patternType") == "prefix" else ResourcePatternType.LITERAL
    return [
        AclBinding(
            kind, name, pattern, who, acl.get("host", "*"),
            AclOperation[OPERATIONS.get(each, each.upper())], AclPermissionType.ALLOW,
        )
        for each in acl["operations"]
    ]  # fmt: skip


def _filter(binding: Any) -> Any:
    return AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal,
        binding.host, binding.operation, binding.permission_type,
    )  # fmt: skip


if __name__ == "__main__":
    main()
