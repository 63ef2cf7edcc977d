"""What messages, logs and reports show of an address."""

from __future__ import annotations

import pytest

from framefuse.common.redact import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://me:pw@host/a", "rtsp://***@host/a"),
        ("rtsp://me:p@w:1/2?@host:554/a", "rtsp://***@host:554/a"),
        ("https://abc123@host/a", "https://***@host/a"),
        ("https://host/a?token=x&size=3", "https://host/a?token=***&size=3"),
        ("https://host/a?Access_Token=x#auth=y", "https://host/a?Access_Token=***"),
        ("https://host/a?pass%77ord=x;api-key=y&b=1", "https://host/a?pass%77ord=***&b=1"),
        ("https://host/a?a=b;api-key=y", "https://host/a?a=b;api-key=***"),
        ("https://host/a;jsessionid=x", "https://host/a;jsessionid=***"),
        ("https://host/a?pw=x&pin=1&SESS=2&passphrase=#'3", "https://host/a?pw=***&pin=***&SESS=***&passphrase=***"),
        ("srt://host:1?streamid=#!::u=me,r=a/b&mode=x", "srt://host:1?streamid=***&mode=x"),
        ("rtmp://host:1/live/key", "rtmp://host:1/live/***"),
        ("rtmps://host/app/live/key?a=1", "rtmps://host/app/live/***?a=1"),
        ("'rtmp:/host/live/key': refused", "'rtmp:/host/live/***': refused"),
        ("rtmp://host:1", "rtmp://host:1"),
        ("no such file: rtmp_clips/live/a.mp4", "no such file: rtmp_clips/live/a.mp4"),
        ("rtsp:/me:pw@host/a", "***@host/a"),
        ("rtsp//me:pw@host/a", "rtsp//***@host/a"),
        ("rtsp:me:pw@host/a", "***@host/a"),
        ("rtsp:/me:pw//1@host/a", "***@host/a"),
        ("no such file: me:pw@host:554/a", "no such file: ***@host:554/a"),
        ('" rtsp://me:pw@host/a"', '" rtsp://***@host/a"'),
        ("rtsp://host/user=admin&password=x&channel=1", "rtsp://host/user=***&password=***&channel=1"),
        ("udp://@:5000", "udp://@:5000"),
        ("udp://@239.0.0.1:5000", "udp://@239.0.0.1:5000"),
        ("http://[::1]:80/a?size=3", "http://[::1]:80/a?size=3"),
        ("https://host/a?code=1&x=2&k=3&t=4", "https://host/a?code=***&x=2&k=***&t=***"),
        ("https://host/a?decoder=1&kind=2&type=3", "https://host/a?decoder=1&kind=2&type=3"),
        ("https://host/live/9f86d081884c7d659a2feaa0c55ad015/index.m3u8", "https://host/live/***/index.m3u8"),
        ("rtsp://host/eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "rtsp://host/***"),
        (
            "https://host/Streaming/Channels/101/a-rather-long-name-of-a-camera",
            "https://host/Streaming/Channels/101/a-rather-long-name-of-a-camera",
        ),
        ("/data/9f86d081884c7d659a2feaa0c55ad015.mp4", "/data/9f86d081884c7d659a2feaa0c55ad015.mp4"),
        ("cannot open 'rtsp://me:pw@host/a?key=1': refused", "cannot open 'rtsp://***@host/a?key=***': refused"),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown
