"""Addresses without their passwords and tokens, for everything that a person or a log may see."""

from __future__ import annotations

import re

HIDDEN = "***"

END = r"(?=['\")\]},;:.]*(?:\s|$))"
"""The end of an address in a sentence, before what closes it."""
SECRET = "tok|pas|phrase|pwd|psw|pw|pin|key|auth|secret|sig|cred|jwt|login|user|usr|sess|sid|streamid|%"
PAIR = re.compile(rf"([?&;#/][^=&;#/?\s]*(?:{SECRET})[^=&;#/?\s]*=)[^&\s]*?(?=&|{END})", re.IGNORECASE)
"""A key, after any separator (some cameras take the login as /user=name&password=word), and its value, up to the next &
because that of streamid holds other separators. A key with an escape in it may spell anything."""
STREAM_KEY = re.compile(rf"(\brtmp\w*(?::|//)/*[^/?\s]+/(?:[^?\s]*/)?)[^/?\s]+?(?=\?|{END})", re.IGNORECASE)
"""The last part of an rtmp path: who knows it may publish."""


def redact(text: str) -> str:
    """The text with logins, stream keys, and the values of keys such as token=, password= and auth= replaced by ***.

    It rather hides too much: any key whose name contains a piece like "pas", "sig" or "key" counts.
    """
    text = re.sub(r"\S+", _without_login, text)
    return STREAM_KEY.sub(rf"\1{HIDDEN}", PAIR.sub(rf"\1{HIDDEN}", text))


def redact_source(source: object) -> str:
    """A source as it was given. It is one word even where it holds blanks, as a mistyped password may."""
    text = str(source)
    return redact(re.sub(r"\s", "%20", text) if "@" in text else text)


def brief(value: object) -> str:
    """The value as Python writes it, redacted, and cut where it is long."""
    text = redact(repr(value)[:2000])
    return text if len(text) <= 100 else text[:97] + "..."


def _without_login(word: re.Match[str]) -> str:
    """What stands before an @: after // it is a login, elsewhere (rtsp:/name:password@host) if it holds a colon.

    Passwords may hold an unescaped / or ?, at the price of hiding a host that is followed by a port and an @ in the
    path.
    """
    scheme, slashes, rest = word[0].partition("//")
    if not slashes or re.search(r"[:/@].", scheme):
        scheme, slashes, rest = "", "", word[0]
    login, _, host = rest.rpartition("@")
    if ":" in login:
        return f"{scheme}{slashes}{HIDDEN}@{host}"
    return scheme + slashes + (re.sub(r"^[^/?#]+@", f"{HIDDEN}@", rest) if slashes else rest)
