"""The secured embedded Kafka: certificates, users with passwords, and permissions that must be granted.

Its brokers authenticate a user by name and password (SASL_SSL, SCRAM) at one port and by a client certificate (SSL) at
another, and allow only what an access control list grants. All of it is created for this one cluster, in its folder,
when it starts.
"""

from __future__ import annotations

import datetime
import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.errors import BrokerDidNotStart, InvariantBroken
from tailrace.kafka.rights import Resource, Right
from tailrace.testing.broker import HOST, Node

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ADMIN, BROKER = "admin", "broker"
CERTIFICATES = "certificates"
MECHANISM = "SCRAM-SHA-512"
_DAYS = 30
_LIMIT = 30.0


def properties(node: Node) -> dict[str, str]:
    """Return the additional settings of a secured broker."""
    certificates = Path("..", CERTIFICATES)  # seen from a broker's own folder
    return {
        "listeners": f"SASL_SSL://{HOST}:{node.port},SSL://{HOST}:{node.tls_port}"
        f",CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"SASL_SSL://{HOST}:{node.port},SSL://{HOST}:{node.tls_port}",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,SSL:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "SSL",
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.controller.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / f"{BROKER}.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.crt"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:CN={BROKER};User:CN={ADMIN}",
    }


class Authority:
    """The cluster's own certificate authority. Files are PEM; keys are readable only by their owner."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CERTIFICATES
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not (self._folder / "ca.key").exists():
            self._issue("ca", itself=True)
            for name in (BROKER, ADMIN):
                self._issue(name)

    @property
    def certificate(self) -> Path:
        """Return the authority's certificate; a client that trusts it trusts the brokers."""
        return self._folder / "ca.crt"

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return the certificate of the principal `User:CN=name`, and its key."""
        if not (self._folder / f"{name}.key").exists():
            self._issue(name)
        return self._folder / f"{name}.crt", self._folder / f"{name}.key"

    def _issue(self, name: str, itself: bool = False) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        issuer, signer = ("ca", key) if itself else ("ca", self._key())
        now = datetime.datetime.now(datetime.UTC)
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
        built = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=itself, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .sign(signer, hashes.SHA256())
        )
        chain = built.public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        for suffix, content in (("crt", chain), ("key", secret), ("pem", secret + chain)):
            file = self._folder / f"{name}.{suffix}"
            file.touch(mode=0o600)
            file.write_bytes(content)

    def _key(self) -> EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives import serialization

        key: Any = serialization.load_pem_private_key((self._folder / "ca.key").read_bytes(), None)
        return key  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Door:
    """One way to connect: the address, and connection options as librdkafka names them."""

    bootstrap_servers: str
    options: Mapping[str, str]

    @property
    def client(self) -> dict[str, str]:
        """Return both as the configuration of a librdkafka client."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.options}


class Security:
    """The users and permissions of a secured cluster, changed as its administrator."""

    def __init__(self, folder: Path, nodes: Iterable[Node]) -> None:
        self._nodes = tuple(nodes)
        self._authority = Authority(folder)
        self._admin: AdminClient | None = None

    @property
    def administrator(self) -> Door:
        """Return the connection of the administrator, who may do everything."""
        return self.certificate(ADMIN)

    def certificate(self, name: str) -> Door:
        """Return a connection with its own certificate, as the principal `User:CN=name`."""
        chain, key = self._authority.issue(name)
        options = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._authority.certificate),
            "ssl.certificate.location": str(chain),
            "ssl.key.location": str(key),
        }
        return Door(",".join(f"{HOST}:{node.tls_port}" for node in self._nodes), options)

    def user(self, name: str, password: str) -> Door:
        """Return a connection with a password, as the principal `User:name`; create the user or set this password."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]
            ScramCredentialInfo,
            ScramMechanism,
            UserScramCredentialUpsertion,
        )

        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        admin = self._client()
        admin.alter_user_scram_credentials([change])[name].result(timeout=_LIMIT)
        _until(lambda: bool(_known(admin, name)), f"the user {name!r}")
        options = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self._authority.certificate),
        }
        return Door(",".join(f"{HOST}:{node.port}" for node in self._nodes), options)

    def allow(self, principal: str, rights: Iterable[Right]) -> None:
        """Grant these rights, and return when the brokers apply them."""
        admin, listed = self._client(), list(rights)
        for future in admin.create_acls([_binding(principal, each) for each in listed]).values():
            future.result(timeout=_LIMIT)
        for each in listed:
            _until(partial(_granted, admin, principal, each), f"{each} for {principal}")

    def withdraw(self, principal: str, rights: Iterable[Right]) -> None:
        """Revoke these rights, and return when the brokers apply that."""
        admin, listed = self._client(), list(rights)
        for future in admin.delete_acls([_filter(principal, each) for each in listed]).values():
            future.result(timeout=_LIMIT)
        for each in listed:
            _until(lambda each=each: not _granted(admin, principal, each), f"the end of {each} for {principal}")  # type: ignore[misc]

    def _client(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        if not self._nodes:
            raise InvariantBroken("the embedded Kafka has no users before it has started")
        if self._admin is None:
            self._admin = AdminClient({**self.administrator.client, "log_level": 0})
        return self._admin


def _until(holds: Callable[[], bool], what: str) -> None:
    """Wait until the brokers have applied a change, which is a moment after the controller has accepted it."""
    until = time.monotonic() + _LIMIT
    while not holds():
        if time.monotonic() > until:
            raise BrokerDidNotStart(f"waited {_LIMIT:.0f} s for the brokers to apply {what}")
        time.sleep(0.01)


def _known(admin: AdminClient, name: str) -> bool:
    from confluent_kafka import KafkaException

    try:
        asked: Any = admin.describe_user_scram_credentials([name])
        return bool(asked[name].result(timeout=_LIMIT))
    except KafkaException:
        return False


def _granted(admin: AdminClient, principal: str, right: Right) -> bool:
    return bool(admin.describe_acls(_filter(principal, right)).result(timeout=_LIMIT))


def _binding(principal: str, right: Right) -> Any:
    from confluent_kafka.admin import AclBinding, AclPermissionType  # type: ignore[attr-defined]

    return AclBinding(*_parts(right), principal, "*", _operation(right), AclPermissionType.ALLOW)


def _filter(principal: str, right: Right) -> Any:
    from confluent_kafka.admin import AclBindingFilter, AclPermissionType  # type: ignore[attr-defined]

    return AclBindingFilter(*_parts(right), principal, "*", _operation(right), AclPermissionType.ALLOW)


def _parts(right: Right) -> tuple[Any, str, Any]:
    from confluent_kafka.admin import ResourcePatternType, ResourceType  # type: ignore[attr-defined]

    kinds = {
        Resource.TOPIC: ResourceType.TOPIC,
        Resource.GROUP: ResourceType.GROUP,
        Resource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
        Resource.CLUSTER: ResourceType.BROKER,
    }
    name = "kafka-cluster" if right.resource is Resource.CLUSTER else right.name
    return kinds[right.resource], name, ResourcePatternType.PREFIXED if right.prefix else ResourcePatternType.LITERAL


def _operation(right: Right) -> Any:
    from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

    return AclOperation[right.operation.name]
