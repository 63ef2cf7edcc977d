"""Addresses of streams: which are valid, which certificates of https and rtsps servers are trusted, and why not."""

import hashlib
import os
import socket
import ssl
from urllib.parse import urlsplit

from framefuse.common.redact import redact
from framefuse.errors import SourceError, UsageError
from framefuse.sources.source import SCHEMES

FFMPEG_OPTIONS = {
    "rtsp_transport": "tcp",
    "allowed_media_types": "video",
    "max_delay": "200000",  # RTP over UDP: microseconds to wait for a datagram that is out of order
    "overrun_nonfatal": "1",  # UDP: a full receive buffer loses frames, not the connection
    "fpsprobesize": "3",  # frames read to find the frame rate; FFmpeg's default of 20 delays the first frame
    "analyzeduration": "2000000",  # maximum microseconds to find the streams; ends as soon as they are found
    "reuse": "1",  # UDP: a new connection can be opened while an abandoned one still reads
}
TRANSPORTS = ("tcp", "udp", "udp_multicast", "http", "https")
PORTS = {"https": 443, "rtsps": 322}
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions of Linux keep the certificates of public authorities. The TLS library in PyAV's wheels looks in
one place only, and OpenSSL's own is often a folder, which FFmpeg cannot read."""


class Address:
    """The address of a stream, checked. Its repr contains no secret.

    Raises:
        SourceError: unknown scheme, missing host or port, blanks, or unknown transport.
        UsageError: tls_verify is neither auto, on or off nor a file with a certificate.
    """

    def __init__(self, uri: str, tls_verify: str = "auto") -> None:
        self.scheme = scheme = uri.partition("://")[0].lower()
        if problem := _problem(uri, scheme):
            raise SourceError(
                f"malformed {scheme if scheme in SCHEMES else 'stream'} address: {problem}",
                # Spelled out, as an example with a password would be redacted.
                remedy="write scheme://host:port/path, with any login (name, colon, password, @) before the host, and "
                "/ ? # @ in a password as %2F %3F %23 %40",
            )
        self.ffmpeg_options = options = dict(FFMPEG_OPTIONS)
        if scheme in ("rtsp", "rtsps"):
            base, mark, query = uri.partition("?")
            items = query.split("&")
            for item in [item for item in items if item.startswith("transport=")]:
                items.remove(item)
                options["rtsp_transport"] = item.removeprefix("transport=")
                if options["rtsp_transport"] not in TRANSPORTS:
                    raise SourceError(f"{redact(uri)}: unknown transport", remedy=f"use one of {', '.join(TRANSPORTS)}")
            uri = base + mark + "&".join(items) if items else base
        self.url = uri
        """With the credentials and without `?transport=`: for FFmpeg only."""
        verified = tls_verify != "off" and (tls_verify != "auto" or scheme != "rtsps")  # cameras sign their own
        if scheme in (*PORTS, "http"):  # an http server may redirect to an https one
            options["tls_verify"] = "1" if verified else "0"
            if verified and (trusted := _trusted(tls_verify)):
                options["ca_file"] = trusted
                if trusted == tls_verify:
                    _trusting(trusted)
        self.verified = verified if scheme in PORTS else None
        """Whether the certificate of the server is verified; None: it has none."""

    def __repr__(self) -> str:
        return redact(self.url)

    def why_unresolved(self) -> str:
        """Whether the host name cannot be resolved, which FFmpeg does not report."""
        parts = urlsplit(self.url)
        try:
            socket.getaddrinfo(parts.hostname, parts.port)
        except (OSError, UnicodeError) as error:  # the latter for a part of the name that is too long
            return f" (cannot resolve the host {parts.hostname}: {getattr(error, 'strerror', None) or error})"
        return ""

    def why_untrusted(self, timeout: float) -> str:
        """Why the certificate of the server is not trusted, which FFmpeg does not report; "" if it is, or none."""
        if not self.verified:
            return ""
        parts = urlsplit(self.url)
        server = str(parts.hostname), parts.port or PORTS[self.scheme]
        try:
            with socket.create_connection(server, timeout) as plain:
                _trusting(self.ffmpeg_options.get("ca_file")).wrap_socket(plain, server_hostname=server[0]).close()
        except (OSError, ValueError) as error:
            if isinstance(error, ssl.SSLCertVerificationError):
                which = f"the certificate{_fingerprint(server, timeout)} of {server[0]}:{server[1]}"
                return f"{which} is not trusted: {error.verify_message}"
        return ""


def _problem(uri: str, scheme: str) -> str:
    """What is wrong with an address, quoting nothing of it; empty if it is valid."""
    if scheme not in SCHEMES:
        return "unknown scheme"
    if any(character.isspace() or not character.isprintable() for character in uri):
        return "blanks or control characters"
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "invalid host or port"
    if not host and scheme not in ("udp", "rtp"):
        return "no host"
    if port is None and scheme in ("udp", "rtp", "tcp", "srt"):
        return "no port"
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
