"""Where a model is: a folder, or a name of the Hugging Face Hub, whose files come through the Hub's cache."""

from __future__ import annotations

import re
from pathlib import Path

from regard.errors import BadValue, Unsupported
from regard_workbench.files import shown
from regard_workbench.models.pretrained.files import CONFIG, INDEX, WEIGHTS

HUB = "hf:"  # begins a name of the Hub where a path is expected
# What is fetched: configuration, weights without pickles, vocabularies. No code.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")
_REVISION = re.compile(r"[\w.-]{1,100}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def is_hub_form(where: str) -> bool:
    """Whether a path is a folder with a model in the Hub's form."""
    return "\0" not in where and (Path(where) / CONFIG).is_file()


def is_hub_name(where: str) -> bool:
    """Whether a text is not a path of this machine, and could be a name of the Hub."""
    if "\0" in where or not _NAME.fullmatch(where) or ".." in where or "--" in where:
        return False
    return not Path(where).exists()


def located(where: str | Path, revision: str | None = None, argument: str = "name") -> Path:
    """The folder of a model: the one given, or that of a Hub name in the Hub's cache, downloaded if it is not there."""
    text = str(where)
    if revision is not None and not _REVISION.fullmatch(revision):
        raise BadValue(f"revision: expected a branch, a tag or a commit, got {shown(revision)}.")
    if text.startswith(HUB):
        return _from_hub(text.removeprefix(HUB), revision, argument)
    if is_hub_form(text):
        return Path(text)
    if "\0" not in text and Path(text).exists():
        raise BadValue(f"{argument}: expected a folder with {CONFIG}, got {shown(text)}.")
    if not is_hub_name(text):
        raise BadValue(
            f"{argument}: expected a folder with {CONFIG}, or a name of the Hub such as google-bert/bert-base-uncased, "
            f"got {shown(text)}."
        )
    return _from_hub(text, revision, argument)


def cached_folder(where: str, revision: str | None = None) -> Path | None:
    """The folder of a Hub name in the Hub's cache; None if it is not there. Nothing is downloaded."""
    name = where.removeprefix(HUB)
    if not is_hub_name(name):
        return None
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    kept = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    reference = kept / "refs" / (revision or "main")
    if reference.is_file():
        chosen = kept / "snapshots" / reference.read_text(encoding="utf-8", errors="replace").strip()[:64]
        if (chosen / CONFIG).is_file():
            return chosen
    complete = [config.parent for config in kept.glob(f"snapshots/{revision or '*'}/{CONFIG}")]
    return max(complete, key=lambda folder: folder.stat().st_mtime, default=None)


def _from_hub(name: str, revision: str | None, argument: str) -> Path:
    if not _NAME.fullmatch(name):
        raise BadValue(
            f"{argument}: expected a name of the Hub such as google-bert/bert-base-uncased, got {shown(name)}."
        )
    cached = cached_folder(name, revision)
    if cached is not None and any((cached / file).is_file() for file in (WEIGHTS, INDEX)):
        return cached
    try:
        import huggingface_hub
    except ImportError:
        raise Unsupported(
            f"{argument}: {name!r} is no folder. Names of the Hub need the package huggingface-hub; install the extra: "
            "pip install 'regard[huggingface]'."
        ) from None
    try:
        snapshot = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(PATTERNS))
    except Exception as trouble:  # the library raises errors of many kinds: network, name, rights, disk
        text = " ".join(str(trouble).split())[:200]
        raise BadValue(
            f"{argument}: {name!r} is neither a folder nor in the Hub's cache, and the Hub did not give it: {text}"
        ) from None
    return Path(snapshot)
