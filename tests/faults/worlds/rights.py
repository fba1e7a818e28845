"""A right of the pipeline's user that is withdrawn for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
)

from support.kafkaproxy import USER

_TIMEOUT = 30  # seconds


@contextmanager
def denied(bootstrap: str, kind: Any, name: str, how: Any, operation: Any) -> Iterator[None]:
    """Deny the user this operation on a resource."""
    # A resource with an entry is closed to a user whom no entry allows.
    entries = [
        (kind, name, how, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW),
        (kind, name, how, f"User:{USER}", "*", operation, AclPermissionType.DENY),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        for entry in entries:
            for made in admin.create_acls([AclBinding(*entry)]).values():
                made.result(_TIMEOUT)
        yield
    finally:
        for entry in reversed(entries):
            for gone in admin.delete_acls([AclBindingFilter(*entry)]).values():
                gone.result(_TIMEOUT)
