"""Checksums that a text file carries itself, so that a file and its checksum are always replaced together.

JSON holds its SHA-256 under `sha256`; `config.yaml` ends in a comment with it. A file without one was written by an
earlier version: it is read, and callers say that a change of it would not be noticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import BadValue

KEY = "sha256"
UNSEALED = "it was written by an earlier version without checksums, so a later change of it cannot be noticed"
_HEX = rb"[0-9a-f]{64}"
_LINE = re.compile(rb"\A(.*)^# sha256: (" + _HEX + rb") [^\n]*\n\Z", re.DOTALL | re.MULTILINE)
_TRACE = re.compile(rb"# sha256|" + _HEX)  # no settings look like this, so here a seal was changed


class Changed(BadValue):
    """A file of a run that is not what was written."""


def digest(content: Any) -> str:
    """The SHA-256 of plain JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """An object as JSON that carries its checksum."""
    plain = json.loads(json.dumps(content))  # as it will be read: tuples become lists
    return json.dumps({**plain, KEY: digest(plain)}, indent=1, ensure_ascii=False).encode()


def read_json(data: bytes, where: Path) -> tuple[dict[str, Any], bool]:
    """The object in a file, and whether it carried a checksum; `Changed` where it does not agree with it."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as trouble:
        raise Changed(f"{where} cannot be read: {trouble}.") from None
    if not isinstance(found, dict):
        raise Changed(f"{where} cannot be read: expected an object, got {type(found).__name__}.")
    sealed = KEY in found
    told = found.pop(KEY, None)
    if sealed and told != digest(found):
        raise Changed(f"{where} is not what was written (its SHA-256 differs).")
    return found, sealed


def yaml_bytes(text: str, hint: str) -> bytes:
    """Settings as YAML whose last line, a comment, is the checksum of the lines above it."""
    body = text.encode()
    return body + f"# sha256: {hashlib.sha256(body).hexdigest()} of the lines above. {hint}\n".encode()


def check_yaml(data: bytes, where: Path) -> bool:
    """Whether settings carried a checksum; `Changed` where they do not agree with it."""
    found = _LINE.match(data)
    if found is None and _TRACE.search(data) is None:
        return False
    if found is None or hashlib.sha256(found[1]).hexdigest().encode() != found[2]:
        raise Changed(f"{where} is not what was written (its SHA-256 differs).")
    return True
