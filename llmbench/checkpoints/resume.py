"""Large files of the hub, in a way that goes on across calls where a connection, or the process, broke off.

huggingface_hub resumes within one call, but throws a partial file away when the call fails (seen in 2.4): hours, for a shard of 10 GB on a
slow line. So the bytes of weight files are fetched here, by huggingface_hub's own http_get, into a partial file beside the cache's blobs. A
whole one is checked against its sha256 and becomes the blob; hf_hub_download then finds it and only links it. Should the cache's layout
change one day, hf_hub_download downloads again: slower, never wrong.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from llmbench.checkpoints.errors import CheckpointError
from llmbench.hashing import file_sha256

LOCK_TIMEOUT_S = 24 * 3600
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ETAG = re.compile(r"[0-9A-Za-z]{8,128}")


def fetch_blob(repository: str, name: str, commit: str, timeout_s: float) -> None:
    """Brings one file's bytes into the cache's blobs, from where a former call stopped.

    Raises what huggingface_hub raises, and CheckpointError for bytes whose sha256 is not the one the hub gives.
    """
    from filelock import FileLock
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repository, name, revision=commit)
    metadata = get_hf_file_metadata(url, timeout=timeout_s)
    if metadata.etag is None or metadata.size is None or _ETAG.fullmatch(metadata.etag) is None:
        return  # hf_hub_download has its own answer to that
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
    blob = blobs / metadata.etag
    partial = blobs / f"{metadata.etag}.llmbench.incomplete"
    blobs.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{partial}.lock", timeout=LOCK_TIMEOUT_S):
        if blob.exists():
            return
        headers = build_hf_headers()
        if urlsplit(metadata.location).netloc != urlsplit(url).netloc:
            headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}  # a signed address elsewhere
        if partial.exists() and partial.stat().st_size > metadata.size:
            partial.unlink()
        partial.touch()
        with partial.open("r+b") as stream:
            there = stream.seek(0, 2)
            http_get(metadata.location, stream, resume_size=there, headers=headers, expected_size=metadata.size, displayed_filename=name)
        if _SHA256.fullmatch(metadata.etag):
            found = file_sha256(partial)
            if found != metadata.etag:
                partial.unlink()
                raise CheckpointError(f"{name} of {repository} came with sha256 {found}, the hub says {metadata.etag}: call again")
        partial.replace(blob)
