"""Certificates of https and rtsps servers: real servers on 127.0.0.1 whose certificates openssl has made."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from framefuse.cli.app import main
from framefuse.errors import SourceError, UsageError
from framefuse.sources import SourceOptions, open_source
from servers import HttpServer, RtspServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

UNVERIFIED = "the certificate of the server is not verified"


class Certificates:
    """Folder of name.pem and name.key: an authority; `signed` and `elsewhere` by it; `own`, which signs itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        here, there = "subjectAltName=IP:127.0.0.1", "subjectAltName=DNS:elsewhere.example"
        by = ("-CA", str(self.pem("authority")), "-CAkey", str(self.key("authority")))
        self._make("authority", "basicConstraints=critical,CA:TRUE")
        self._make("signed", here, *by)
        self._make("elsewhere", there, *by)
        self._make("own", here)

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def _make(self, name: str, extension: str, *by: str) -> None:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        files = ("-keyout", str(self.key(name)), "-out", str(self.pem(name)))
        command = ("openssl", "req", "-x509", *curve, *files, "-days", "9", "-subj", f"/CN={name}")
        subprocess.run([*command, "-addext", extension, *by], check=True, capture_output=True)

    def of(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.pem(name), self.key(name))
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def read(url: str, tls_verify: str = "auto") -> list[str]:
    """What is noted about certificates of a source of which a few frames were read."""
    options = SourceOptions(tls_verify=tls_verify, timeout=5.0, reconnect=0)
    with closing(open_source(url, options)) as source:
        assert len(list(islice(source, 3))) == 3
        return [note for note in source.info.notes if "certificate" in note]


@pytest.mark.parametrize(
    ("server", "tls_verify", "why"),
    [("own", "auto", "self.signed"), ("own", "on", "self.signed"), ("own", "signed", "self.signed"),
     ("signed", "on", "unable to get local issuer"), ("elsewhere", "authority", "IP address mismatch")],
)  # fmt: skip
@pytest.mark.parametrize("kind", [HttpServer, RtspServer])
def test_a_certificate_that_is_not_trusted(
    certificates: Certificates, kind: Any, server: str, tls_verify: str, why: str
) -> None:
    if kind is RtspServer and tls_verify == "auto":
        pytest.skip("auto does not verify rtsps")
    chosen = tls_verify if tls_verify in ("auto", "on") else str(certificates.pem(tls_verify))
    with kind(tls=certificates.of(server)) as own, pytest.raises(SourceError) as caught:
        read(own.url(), chosen)
    assert f") of 127.0.0.1:{own.port} is not trusted: " in caught.value.message
    assert len(caught.value.message.partition("SHA-256 ")[2].partition(")")[0]) == 64
    assert re.search(why, caught.value.message)
    assert caught.value.remedy and "tls_verify" in caught.value.remedy


@pytest.mark.parametrize("kind", [HttpServer, RtspServer])
@pytest.mark.parametrize(("server", "trusted"), [("signed", "authority"), ("own", "own")])
def test_a_certificate_of_a_file(certificates: Certificates, kind: Any, server: str, trusted: str) -> None:
    with kind(tls=certificates.of(server)) as own:
        assert read(own.url(), str(certificates.pem(trusted))) == []


@pytest.mark.parametrize(("kind", "tls_verify"), [(HttpServer, "off"), (RtspServer, "off"), (RtspServer, "auto")])
def test_any_certificate(certificates: Certificates, kind: Any, tls_verify: str) -> None:
    with kind(tls=certificates.of("own")) as server:
        assert read(server.url(), tls_verify) == [UNVERIFIED]


def test_an_authority_that_the_system_trusts(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.pem("authority")))
    for kind in (HttpServer, RtspServer):
        with kind(tls=certificates.of("signed")) as server:
            assert read(server.url(), "on") == []


def test_a_playlist_says_what_is_not_verified(certificates: Certificates) -> None:
    with HttpServer(tls=certificates.of("own")) as server:
        (said,) = read(server.url("/list.m3u8"), str(certificates.pem("own")))
        assert "not those of its parts" in said
        assert read(server.url("/list.m3u8"), "off") == [UNVERIFIED]


def test_a_server_whose_certificate_changes_is_tried_again(certificates: Certificates) -> None:
    """After the first frame, a wrong certificate is a loss like others."""
    trusted = str(certificates.pem("signed"))
    options = SourceOptions(tls_verify=trusted, timeout=5.0, reconnect_max_delay=0.1)
    server = HttpServer(tls=certificates.of("signed"))
    with closing(open_source(server.url(), options)) as source, ThreadPoolExecutor() as pool:
        with server:
            next(iter(source))
        with HttpServer(tls=certificates.of("own"), port=server.port) as other:
            frames = pool.submit(lambda: list(islice(source, 30)))
            for _ in range(2):  # FFmpeg, and the handshake that finds out why it failed
                assert other.connections.acquire(timeout=20)
        with HttpServer(tls=certificates.of("signed"), port=server.port):
            assert len(frames.result(20)) == 30


def test_other_errors_are_not_of_the_certificate(certificates: Certificates) -> None:
    with HttpServer(tls=certificates.of("own")) as server, pytest.raises(SourceError, match="404"):
        read(server.url("/nothing"), str(certificates.pem("own")))


@pytest.mark.parametrize(
    ("file", "why"), [("none.pem", "No such file"), ("a.txt", "no certificate"), ("folder", "folder"), ("a\0b", "null")]
)
def test_a_file_without_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, why: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("hello")
    Path("folder").mkdir()
    with pytest.raises(UsageError, match=why) as caught:
        open_source("rtsps://127.0.0.1:1/x", SourceOptions(tls_verify=file))
    assert caught.value.remedy and "PEM" in caught.value.remedy


@pytest.mark.parametrize("value", ["", True, None, 1])
def test_what_the_option_does_not_take(value: Any) -> None:
    with pytest.raises(UsageError, match="tls_verify is"):
        SourceOptions(tls_verify=value)


def test_the_command_line(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with HttpServer(tls=certificates.of("own")) as server:
        words = ["predict", server.url("/clip.mp4"), "squares", "--engine", "null", "--json"]
        assert main(words) == 1
        assert "is not trusted" in capsys.readouterr().err
        assert main([*words, "--tls-verify", str(certificates.pem("own"))]) == 0
        assert UNVERIFIED not in capsys.readouterr().out
        Path("run.yaml").write_text("tls_verify: off\n")
        assert main([*words, "--config", "run.yaml"]) == 0
        assert UNVERIFIED in capsys.readouterr().out
