"""Certificates of https and rtsps servers: which are trusted, and why one is not."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
from urllib.parse import urlsplit

from framefuse.errors import UsageError

PORTS = {"https": 443, "rtsps": 322}
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions of Linux keep the certificates of public authorities. The TLS library in PyAV's wheels looks in
one place only, and OpenSSL's own is often a folder, which FFmpeg cannot read."""


def is_verified(scheme: str, tls_verify: str) -> bool:
    """Whether the certificate of a server is verified; auto: of https servers only, as cameras sign their own."""
    return tls_verify != "off" and (tls_verify != "auto" or scheme != "rtsps")


def tls_options(scheme: str, tls_verify: str) -> dict[str, str]:
    """FFmpeg's options for an address; an http server may redirect to an https one.

    Raises:
        UsageError: tls_verify is neither auto, on or off nor a file with a certificate.
    """
    if scheme not in (*PORTS, "http"):
        return {}
    if not is_verified(scheme, tls_verify):
        return {"tls_verify": "0"}
    if tls_verify not in ("auto", "on"):
        _trusting(tls_verify)
    trusted = _trusted(tls_verify)
    return {"tls_verify": "1", **({"ca_file": trusted} if trusted else {})}


def why_untrusted(url: str, tls_verify: str, timeout: float) -> str:
    """Why the certificate of a server is not trusted, which FFmpeg does not report; "" if it is, or is not verified."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not is_verified(parts.scheme, tls_verify):
        return ""
    server = str(parts.hostname), parts.port or PORTS[parts.scheme]
    try:
        with socket.create_connection(server, timeout) as plain:
            _trusting(_trusted(tls_verify)).wrap_socket(plain, server_hostname=server[0]).close()
    except (OSError, ValueError) as error:
        if isinstance(error, ssl.SSLCertVerificationError):
            which = f"the certificate{_fingerprint(server, timeout)} of {server[0]}:{server[1]}"
            return f"{which} is not trusted: {error.verify_message}"
    return ""


def _trusted(tls_verify: str) -> str | None:
    """The file of trusted certificates; None: unknown, the TLS library may have its own."""
    if tls_verify not in ("auto", "on"):
        return tls_verify
    places = ssl.get_default_verify_paths().cafile, *AUTHORITIES  # the first heeds SSL_CERT_FILE
    return next((place for place in places if place and os.path.isfile(place)), None)


def _trusting(file: str | None) -> ssl.SSLContext:
    """A context that trusts the certificates of a file, or the system's; UsageError: it has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if file is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", error)
        remedy = "tls_verify takes auto, on, off, or a PEM file of certificates to trust"
        raise UsageError(f"tls_verify is {file!r}: {why}", remedy=remedy) from error
    return context


def _fingerprint(server: tuple[str, int], timeout: float) -> str:
    """What distinguishes a certificate from all others."""
    try:
        found = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(server, timeout=timeout))
    except (OSError, ValueError):
        return ""
    return f" (SHA-256 {hashlib.sha256(found).hexdigest()})"
