"""One name, one pipeline: groups, transactional ids and plans at the brokers have its name, and not its namespace.

Two Pipelines of one name at one Kafka would fence each other, and each would continue the plans of the other. The one
that has started goes on; of two that have not, the older begins.
"""

from __future__ import annotations

from tailrace.errors import ConfigInvalid
from tailrace_operator import observe, revisions
from tailrace_operator.build import Builder
from tailrace_operator.cache import Cache
from tailrace_operator.model import Key, Resource, Revision


def before(cache: Cache, builder: Builder, resource: Resource, revision: Revision) -> Key | None:
    """Return the Pipeline of another namespace that is this one at the brokers; None if this one may start."""
    own, others = cache.body(resource.key), cache.bodies()
    if own is None:
        return None
    age = str(own["metadata"].get("creationTimestamp", "")), resource.key
    for key, body in sorted(others.items()):
        if key.name != resource.key.name or key == resource.key:
            continue
        found = cache.of(key)
        started = found is not None and found.deployment is not None
        if not started and (str(body["metadata"].get("creationTimestamp", "")), key) > age:
            continue
        if _servers(builder, resource, revision) & _servers(builder, observe.resource(body)):
            return key
    return None


def _servers(builder: Builder, resource: Resource, revision: Revision | None = None) -> set[str]:
    """Return the addresses that mean the same brokers in every namespace; a host without a domain is of its own."""
    try:
        made = builder.configuration(resource, revision or revisions.asked(resource, ()))
    except ConfigInvalid:
        return set()
    servers = (each.strip() for each in made.kafka.bootstrap_servers.split(","))
    return {each for each in servers if "." in each or each.startswith("[")}
