"""Addresses without their passwords and tokens, for everything that a person or a log may see."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"

# The second form is the ordinary one. The first also takes passwords that hold an unescaped / or ?, at the price of
# hiding a host that is followed by a port and an @ in the path.
LOGIN = re.compile(r"://(?:\S*:\S*|[^/?#\s]+)@")
# Some cameras take the login as /user=name&password=word, so a pair may also follow a slash.
PAIR = re.compile(r"([?&;#/])([^=&;#/?\s]+)=([^&;#\s'\"]*)")
SECRET_NAME = re.compile(r"tok|pas|pwd|psw|key|auth|secret|sig|cred|jwt|login|user|usr", re.IGNORECASE)


def redact(text: str) -> str:
    """The text with `name:password@` and the values of keys such as token=, password=, key= and auth= replaced by ***.

    It rather hides too much: any key whose name contains a piece like "pas", "sig" or "key" counts.
    """
    return PAIR.sub(_pair, LOGIN.sub(f"://{HIDDEN}@", text))


def _pair(match: re.Match[str]) -> str:
    separator, name, _ = match.groups()
    return f"{separator}{name}={HIDDEN}" if SECRET_NAME.search(unquote(name)) else match[0]
