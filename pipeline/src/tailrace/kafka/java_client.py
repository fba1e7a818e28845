"""The connection's options in the Java client's names, for Spark's source.

A pipeline configures its connection once, in librdkafka's names; this module translates them.
"""

from __future__ import annotations

import re

from tailrace import errors
from tailrace.config import Kafka


def spark_options(kafka: Kafka) -> dict[str, str]:
    """Return the connection's options for Spark's source, which uses the Java consumer."""
    java: dict[str, str] = {"bootstrap.servers": kafka.bootstrap_servers}
    given = dict(kafka.options)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if user is not None and password is not None:
        scram = given.get("sasl.mechanism", "PLAIN").startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        quoted = [re.sub(r'(["\\])', r"\\\1", text) for text in (user, password)]
        java["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="{quoted[0]}" password="{quoted[1]}";'
        )
    authority, certificate, key = (
        given.pop(name, None) for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
    )
    if authority is not None:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if certificate is not None and key is not None:
        given |= {"ssl.certificate.pem": _text(certificate), "ssl.key.pem": _text(key)}
    if "ssl.key.pem" in given:
        given["ssl.key.pem"] = _plain(given["ssl.key.pem"], given.pop("ssl.key.password", None))
    renamed = {
        "ssl.ca.pem": "ssl.truststore.certificates",
        "ssl.certificate.pem": "ssl.keystore.certificate.chain",
        "ssl.key.pem": "ssl.keystore.key",
        "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    }
    for name, value in given.items():
        if name in renamed and name.endswith(".pem"):
            java["ssl.truststore.type" if "ca" in name else "ssl.keystore.type"] = "PEM"
        if name != "socket.keepalive.enable":
            java[renamed.get(name, name)] = value
    return {f"kafka.{name}": value for name, value in java.items()}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(f"{path} cannot be read ({type(error).__name__})") from None


def _plain(key: str, password: str | None) -> str:
    """Convert the key to what Java 17 can read: PKCS 8, unencrypted, because it cannot read OpenSSL's encryption."""
    from cryptography.hazmat.primitives import serialization

    try:
        read = serialization.load_pem_private_key(key.encode(), password.encode() if password else None)
    except (ValueError, TypeError) as error:  # its text reveals nothing of the key
        raise _unreadable(f"the private key cannot be read with this ssl.key.password ({error})") from None
    form = serialization.PrivateFormat.PKCS8
    return read.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _unreadable(what: str) -> errors.KeyUnreadable:
    return errors.KeyUnreadable(
        what, kept="nothing was read or written", then="check ssl.key.* and ssl.certificate.* of kafka.options"
    )
