"""The expiry check of a client's certificate: brokers refuse an expired one, and the client's error does not say why.

The check comes before any request to Kafka. A run whose certificate expires continues until its next connection; where
certificates are renewed, the driver exits before that (`--until-renewed`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

from tailrace.errors import CertificateExpired


def check(options: Mapping[str, str], now: datetime.datetime) -> None:
    """Raise CertificateExpired if the connection's certificate has expired; leave an unreadable one to the client."""
    place = options.get("ssl.certificate.location")
    try:
        text = Path(place).read_bytes() if place else options.get("ssl.certificate.pem", "").encode()
        certificate = x509.load_pem_x509_certificate(text)
    except (OSError, ValueError):
        return
    end = certificate.not_valid_after_utc
    if now < end:
        return
    whose = certificate.subject.rfc4514_string()
    raise CertificateExpired(
        f"{place or 'ssl.certificate.pem'}, the certificate of {whose}, has expired: it was "
        f"valid until {end:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}",
        kept="nothing was read or written, and no broker was contacted",
        then="renew it; with Strimzi: kubectl annotate secret NAME strimzi.io/force-renew=true",
    )
