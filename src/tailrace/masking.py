"""Hides secrets in text from outside before it reaches a user, a log or a report.

Error messages from Spark, a connector or the user's own code may quote options: a password, a JAAS
configuration, an address with a user name and password. This finds them by their usual names and
formats. It is a safety net below Spark's own redaction (``spark.redaction.regex``), which covers
the settings that Spark prints but not the messages of exceptions. When in doubt it hides too much.
"""

from __future__ import annotations

import re

MASK = "***"

_WORDS = (
    "secret|password|passwd|passphrase|pwd|token|credential|jaas|signature"
    "|(?:access|account|api|private|secret|shared)[._-]?key"
)

NAMES = f"(?i){_WORDS}"
"""A pattern for the names of secrets, which Spark understands too."""

_NAME = rf"[\w.-]*(?:{_WORDS})[\w.-]*(?<!exception)(?<!error)|\bsig"
_SEPARATOR = r"""["']?\s*(?:=|:|->)\s*|["']\s*,\s*(?=["'])"""
_VALUE = r"""(?:b?"(?:\\.|[^"\\])*"|b?'(?:\\.|[^'\\])*'|[^\s,;&)\]}"']+)"""

_JAAS = re.compile(rf"""(?i)([\w.-]*jaas[\w.-]*(?:{_SEPARATOR}))[^\n;]*;?""")
_NAMED = re.compile(rf"(?i)({_NAME})({_SEPARATOR}){_VALUE}")
_SHAPES = (
    (re.compile(r"(\w:/{1,2}[^\s/:@]+):[^\s/]+@"), rf"\1:{MASK}@"),  # user:password@host
    (re.compile(r"(?i)(\b(?:https?|ftp)://)[^\s/:@]+@"), rf"\1{MASK}@"),  # token@host
    (re.compile(r"(?i)(jdbc:oracle:\w+:[^\s/@]+)/[^\s@]+@"), rf"\1/{MASK}@"),
    (re.compile(r"(?i)(authorization\W+(?:bearer|basic)\s+)[^\s\"',]+"), rf"\1{MASK}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),  # a key of AWS
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), MASK),  # a JSON web token
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|$)"), MASK),
)


def masked(text: str) -> str:
    """The same text, with ``***`` for every value that looks like a secret."""
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    return _NAMED.sub(rf"\1\2{MASK}", _JAAS.sub(rf"\1{MASK}", text))


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret."""
    return re.search(NAMES, name) is not None


def masked_value(name: str, value: str) -> str:
    """The value of a setting as it may be shown: hidden if its name says that it is a secret."""
    return MASK if is_secret(name) else masked(value)
