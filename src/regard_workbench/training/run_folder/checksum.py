"""Checksums inside text files, so that a file and its checksum are always replaced together.

JSON files hold their SHA-256 under `sha256`; `config.yaml` ends with it in a comment. A file without a checksum was
written by an earlier version: it is read, and callers warn that a change of it cannot be detected.
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
NO_CHECKSUM = "it was written by an earlier version without checksums, so a later change of it cannot be detected"
_HEX = rb"[0-9a-f]{64}"
_LINE = re.compile(rb"\A(.*)^# sha256: (" + _HEX + rb") [^\n]*\n\Z", re.DOTALL | re.MULTILINE)
_TRACE = re.compile(rb"# sha256|" + _HEX)  # no setting looks like this, so it is a damaged checksum


class FileChanged(BadValue):
    """A file of a run differs from what the run wrote."""


def digest(content: Any) -> str:
    """The SHA-256 of plain JSON data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Encode an object as JSON with its checksum."""
    plain = json.loads(json.dumps(content))  # as it will be read back: tuples become lists
    return json.dumps({**plain, KEY: digest(plain)}, indent=1, ensure_ascii=False).encode()


def read_json(data: bytes, where: Path) -> tuple[dict[str, Any], bool]:
    """Decode a file, and whether it had a checksum; raise `FileChanged` if the checksum does not match."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileChanged(f"{where} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise FileChanged(f"{where} cannot be read: expected an object, got {type(content).__name__}.")
    has_checksum = KEY in content
    expected = content.pop(KEY, None)
    if has_checksum and expected != digest(content):
        raise FileChanged(f"{where} is not what was written (its SHA-256 differs).")
    return content, has_checksum


def yaml_bytes(text: str, hint: str) -> bytes:
    """Append to YAML a comment with the checksum of the lines above it."""
    body = text.encode()
    return body + f"# sha256: {hashlib.sha256(body).hexdigest()} of the lines above. {hint}\n".encode()


def check_yaml(data: bytes, where: Path) -> bool:
    """Whether YAML had a checksum; raise `FileChanged` if it does not match."""
    match = _LINE.match(data)
    if match is None and _TRACE.search(data) is None:
        return False
    if match is None or hashlib.sha256(match[1]).hexdigest().encode() != match[2]:
        raise FileChanged(f"{where} is not what was written (its SHA-256 differs).")
    return True
