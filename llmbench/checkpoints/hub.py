"""A checkpoint from the Hugging Face hub, through huggingface_hub: only the files needed, into the Hugging Face cache, and plain answers.

Files land in the user's Hugging Face cache (HF_HOME), shared with other tools; a small record in checkpoints/ says which commit is whole, so
that it is used again without the network. The token is huggingface_hub's business (HF_TOKEN, `hf auth login`); it never stands in a message.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmbench.checkpoints.catalog import suggest
from llmbench.checkpoints.config import ModelConfig, read_outline
from llmbench.checkpoints.errors import CheckpointError, one_line
from llmbench.checkpoints.kept import need_disk, size_words
from llmbench.checkpoints.resume import fetch_blob
from llmbench.checkpoints.tensor_files import INDEX, SINGLE, read_entries, read_every_entry

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9._-]{1,96}")
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
#: Llama-3's repositories keep the tiktoken file below `original/` only; tokenizer.json is there too, and preferred.
SHARDS = "model-?????-of-?????.safetensors"
API_TIMEOUT_S = 10.0

Progress = Callable[[str], None]


class HubUnreachable(CheckpointError):
    """The hub did not answer: no network, offline mode, or an error of its own. Another source may still do."""


class HubRefused(CheckpointError):
    """The hub answered no: unknown model or revision, gated, a wrong token."""


@dataclass(frozen=True)
class Snapshot:
    """A commit's folder in the Hugging Face cache."""

    path: Path
    repository: str
    commit: str
    revision: str


def snapshot(
    repository: str,
    revision: str | None,
    checkpoints: Path,
    *,
    weights: bool = True,
    offline: bool = False,
    timeout_s: float = API_TIMEOUT_S,
    progress: Progress,
) -> Snapshot:
    """The folder of `repository` at `revision` (a branch, tag or commit; default main), downloaded as far as it isn't there yet.

    What a former call brought whole is used without the network. weights=False leaves *.safetensors out. Raises HubUnreachable, HubRefused,
    or CheckpointError for a broken download (the next call resumes it), a full disk or an unsupported architecture.
    """
    wanted = revision or "main"
    known = _recorded(repository, wanted, checkpoints, weights)
    if known is not None:
        return known
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    if offline or constants.HF_HUB_OFFLINE:
        why = "--offline is given" if offline else "HF_HUB_OFFLINE is set"
        return _cached(
            repository, wanted, weights, HubUnreachable(f"{why}, and {repository}@{wanted} is not whole in the Hugging Face cache")
        )
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=wanted, timeout=timeout_s, files_metadata=True)
    except Exception as error:
        reason = _explain(error, repository, wanted, "asking the hub")
        if isinstance(reason, HubUnreachable):
            return _cached(repository, wanted, weights, reason)
        raise reason from None
    commit = str(info.sha)
    sizes = {entry.rfilename: int(entry.size or 0) for entry in info.siblings or []}
    files = _choose(sizes, repository, weights)
    path = _download(repository, wanted, commit, files, sizes, progress)
    _record(repository, wanted, commit, path, files, weights, checkpoints)
    return Snapshot(path, repository, commit, wanted)


def _choose(sizes: dict[str, int], repository: str, weights: bool) -> list[str]:
    """The needed ones of a repository's files, config.json first: a gate or an unsupported architecture shows before the large files."""
    if "config.json" not in sizes:
        raise HubRefused(f"{repository} has no config.json: it is no checkpoint in Hugging Face layout")
    files = [name for name in SMALL_FILES if name in sizes]
    if not weights:
        return files
    if SINGLE in sizes:
        return [*files, SINGLE]
    shards = sorted(name for name in sizes if fnmatch.fnmatchcase(name, SHARDS))
    if INDEX not in sizes or not shards:
        raise HubRefused(f"{repository} has neither {SINGLE} nor {INDEX} with its shards; pickles (*.bin) are never read")
    return [*files, INDEX, *shards]


def _download(repository: str, wanted: str, commit: str, files: list[str], sizes: dict[str, int], progress: Progress) -> Path:
    import huggingface_hub
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    missing = [name for name in files if not isinstance(huggingface_hub.try_to_load_from_cache(repository, name, revision=commit), str)]
    total = sum(sizes[name] for name in missing)
    need_disk(cache, total, f"{repository}@{commit[:12]}")
    if missing:
        progress(f"downloading {repository}@{commit[:12]}: {len(missing)} files, {size_words(total)}")
    folder: Path | None = None
    for name in files:
        if name in missing and sizes[name] > 10**7:
            progress(f"downloading {name} ({size_words(sizes[name])})")
        try:
            if name in missing and name.endswith(".safetensors"):
                fetch_blob(repository, name, commit, API_TIMEOUT_S)
            # The first file by the name asked for, so that the cache learns which commit that is.
            asked = wanted if name == "config.json" else commit
            got = Path(huggingface_hub.hf_hub_download(repository, name, revision=asked, etag_timeout=API_TIMEOUT_S))
        except Exception as error:
            raise _explain(error, repository, wanted, f"downloading {name}") from None
        if sizes[name] and got.stat().st_size != sizes[name]:
            raise CheckpointError(
                f"{name} of {repository} came with {got.stat().st_size} bytes, the hub lists {sizes[name]}: delete {got.resolve()} and call again"
            )
        if name == "config.json":
            folder = got.parent
            if folder.name != commit:
                raise CheckpointError(f"{repository}@{wanted} changed while it was being downloaded; call again")
            read_outline(folder)
    assert folder is not None  # config.json is always among the files
    return folder


def _cached(repository: str, wanted: str, weights: bool, otherwise: CheckpointError) -> Snapshot:
    """What other tools left in the Hugging Face cache, if it is whole; raises `otherwise` if not."""
    import huggingface_hub

    try:
        found = huggingface_hub.try_to_load_from_cache(repository, "config.json", revision=wanted)
    except Exception:  # a cache folder that is no cache
        found = None
    if not isinstance(found, str):
        raise otherwise
    path = Path(found).parent
    config = read_outline(path)
    if weights:
        try:
            if isinstance(config, ModelConfig):
                read_entries(path, config)
            else:
                read_every_entry(path)
        except CheckpointError as error:
            raise type(otherwise)(f"{otherwise.reason}; {error.reason}") from None
    return Snapshot(path, repository, path.name, wanted)


# ------------------------------------------------------------------------------------------------- records of what came whole


def record_name(repository: str, commit: str) -> str:
    return f"{repository.replace('/', '--')}@{commit[:12]}.json"


def _record(repository: str, wanted: str, commit: str, path: Path, files: list[str], weights: bool, checkpoints: Path) -> None:
    """Notes that this commit is whole. Only a convenience: where checkpoints/ can't be written, the next call asks the hub again."""
    from llmbench.checkpoints.dummy import atomic

    place = checkpoints / record_name(repository, commit)
    former = _read_record(place) or {}
    value = {
        "repository": repository,
        "commit": commit,
        "revisions": sorted({wanted, commit, *former.get("revisions", [])}),
        "snapshot": str(path),
        "weights": weights or bool(former.get("weights")),
        "files": {**former.get("files", {}), **{name: (path / name).stat().st_size for name in files}},
    }
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        with atomic(place) as stream:
            stream.write(json.dumps(value, indent=2).encode())
    except OSError:
        return


def _read_record(place: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(place.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    types = {"repository": str, "commit": str, "revisions": list, "snapshot": str, "files": dict}
    return value if all(isinstance(value.get(key), kind) for key, kind in types.items()) else None


def _recorded(repository: str, wanted: str, checkpoints: Path, weights: bool) -> Snapshot | None:
    """A commit noted as whole whose files still lie there; the newest note wins where a branch has moved on."""
    places = list(checkpoints.glob(record_name(repository, "*"))) if checkpoints.is_dir() else []
    for place in sorted(places, key=lambda place: place.stat().st_mtime, reverse=True):
        record = _read_record(place)
        if record is None or record["repository"] != repository or wanted not in record["revisions"]:
            continue
        if weights and not record.get("weights"):
            continue
        path = Path(record["snapshot"])
        if all((path / name).is_file() and (path / name).stat().st_size == size for name, size in record["files"].items()):
            return Snapshot(path, repository, record["commit"], wanted)
    return None


# --------------------------------------------------------------------------------------------------------- what went wrong


def _explain(error: Exception, repository: str, revision: str, doing: str) -> CheckpointError:
    """An exception of huggingface_hub or its HTTP library (requests, httpx: it changed) as one line that says what to do."""
    from huggingface_hub import constants, errors, get_token

    if isinstance(error, CheckpointError):
        return error
    text = str(error)
    token = get_token()
    if token:
        text = text.replace(token, "***")
    text = one_line(text, 300)
    status = getattr(getattr(error, "response", None), "status_code", None)
    page = f"{constants.ENDPOINT}/{repository}"
    login = "`hf auth login`, or the environment variable HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        first = f"{repository} is gated: accept its licence on {page}"
        if token:
            return HubRefused(f"{first} with the account of the token in use, and give the token the right to read gated models")
        return HubRefused(f"{first}, then give a token that may read it: {login}")
    if isinstance(error, errors.RevisionNotFoundError):
        return HubRefused(f"{repository} has no revision {revision!r}")
    if isinstance(error, errors.RepositoryNotFoundError):
        near = suggest(repository)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        return HubRefused(f"the hub has no model {repository!r}, or it is private and needs a token ({login}){meant}")
    if status == 401:
        return HubRefused(f"the hub does not accept the token in use; renew it with {login}")
    if status == 403:
        return HubRefused(
            f"the hub does not let this account read {repository}: accept its terms on {page}, or give another token: {login}"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(f"the disk under {constants.HF_HUB_CACHE} is full ({doing}): free some, or point HF_HOME to a larger one")
    if "Consistency check failed" in text:
        return CheckpointError(f"{doing} of {repository} broke off: {text}; call again, it goes on where it stopped")
    if doing == "asking the hub":
        what = f"it answered {status}" if status else f"{type(error).__name__}: {text}"
        return HubUnreachable(f"the hub at {constants.ENDPOINT} can't be reached ({what})")
    return CheckpointError(f"{doing} of {repository} broke off ({type(error).__name__}: {text}); call again, it goes on where it stopped")
