"""The two certificate authorities of a Kafka cluster, and the certificates that they sign for brokers and users."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, both in PEM; the key as PKCS #8."""

    certificate: bytes
    key: bytes


def authority(name: str, days: int = 365) -> Signed:
    """Make a self-signed certificate authority."""
    return _sign(name, None, days, ())


def issue(by: Signed, name: str, days: float, hosts: Sequence[str] = ()) -> Signed:
    """Issue a certificate for `CN=name`; with negative days it has already expired."""
    return _sign(name, by, days, hosts)


def _sign(name: str, by: Signed | None, days: float, hosts: Sequence[str]) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.load_pem_x509_certificate(by.certificate).subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - datetime.timedelta(hours=1))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if hosts:
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signer = serialization.load_pem_private_key(by.key, None) if by else key
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError(f"an authority's key is a {type(signer).__name__}")
    return Signed(
        built.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
