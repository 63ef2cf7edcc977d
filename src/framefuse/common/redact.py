"""Redaction of passwords and tokens in addresses, for everything that a user or a log may see."""

import re

HIDDEN = "***"

END = r"(?=['\")\]},;:.]*(?:\s|$))"
"""The end of an address in a sentence, before closing punctuation."""
SECRET = "tok|pas|phrase|pwd|psw|pw|pin|key|auth|secret|sig|cred|jwt|login|user|usr|sess|sid|streamid|%"
SHORT = "code|k|t|s|st|h|hash|hmac|ticket|nonce"
"""Keys that are secret only as a whole word."""
PAIR = re.compile(
    rf"([?&;#/](?:[^=&;#/?\s]{{0,60}}(?:{SECRET})[^=&;#/?\s]{{0,60}}|(?:{SHORT}))=)[^&\s]*?(?=&|{END})", re.IGNORECASE
)
"""A key, after any separator (some cameras take the login as /user=name&password=word), and its value up to the next &,
since the value of streamid contains other separators. A key with an escape may spell anything, so it counts too."""
PATH_TOKEN = re.compile(
    r"(?<=/)(?=[^/?#\s]{0,200}[0-9])(?=[^/?#\s]{0,200}[A-Za-z])(?:[A-Za-z0-9_-]{24,}|[0-9a-fA-F-]{20,})(?=/|[?#]|\.\w{2,4}\b|$)"
)
"""A part of a path that is long, and of letters and digits: services put a token there."""
STREAM_KEY = re.compile(
    rf"(\brtmp\w{{0,3}}(?::|//)/{{0,9}}[^/?\s]{{1,300}}/(?:[^?\s]{{0,999}}/)?)[^/?\s]{{1,999}}?(?=\?|{END})",
    re.IGNORECASE,
)
"""The last part of an rtmp path: whoever knows it can publish."""


def redact(text: str) -> str:
    """The text with logins, stream keys, and the values of keys such as token=, password= and auth= replaced by ***.

    It hides too much rather than too little: any key whose name contains "pas", "sig", "key" or the like counts.
    """
    text = re.sub(r"\S+", _without_login, text)
    text = re.sub(r"\w+://\S+", lambda address: PATH_TOKEN.sub(HIDDEN, address[0]), text)
    return STREAM_KEY.sub(rf"\1{HIDDEN}", PAIR.sub(rf"\1{HIDDEN}", text))


def redact_source(source: object) -> str:
    """A source as given, redacted. It is treated as one word even if it contains spaces, as a mistyped password may."""
    text = str(source)
    return redact(re.sub(r"\s", "%20", text) if "@" in text else text)


def brief(value: object) -> str:
    """The repr of a value, redacted and shortened; its type where it has none, as an int of 5,000 digits."""
    try:
        text = redact(repr(value)[:2000])
    except Exception:  # of the caller's class: whatever it raises would hide what is wrong with the value
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:97] + "..."


def _without_login(word: re.Match[str]) -> str:
    """Hide the text before an @: after // it is a login, elsewhere (rtsp:/name:password@host) if it has a colon. As
    passwords may contain an unescaped / or ?, a host with a port before an @ in the path is hidden too."""
    scheme, slashes, rest = word[0].partition("//")
    if not slashes or re.search(r"[:/@].", scheme):
        scheme, slashes, rest = "", "", word[0]
    login, _, host = rest.rpartition("@")
    if ":" in login:
        return f"{scheme}{slashes}{HIDDEN}@{host}"
    return scheme + slashes + (re.sub(r"^[^/?#]+@", f"{HIDDEN}@", rest) if slashes else rest)
