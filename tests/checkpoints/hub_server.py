"""A server on 127.0.0.1 that speaks the part of the hub's API that huggingface_hub uses for one model, with faults on order."""

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@dataclass
class Hub:
    """One repository, "owner/name". `fault(request)` may answer a request itself: it returns true once it has."""

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str | None = None  # needed for the files, where given
    fault: "Callable[[Handler], bool] | None" = None
    log: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range header
    endpoint: str = ""

    @classmethod
    def of_folder(cls, folder: Path) -> "Hub":
        return cls({path.name: path.read_bytes() for path in folder.iterdir()})

    def paths(self, method: str) -> list[str]:
        return [path.rsplit("/", 1)[1] for verb, path, _ in self.log if verb == method and "/resolve/" in path]

    def __enter__(self) -> "Hub":
        handler = type("Bound", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.log.append((self.command, path, self.headers.get("Range")))
        if self.hub.fault is not None and self.hub.fault(self):
            return None
        parts = path.strip("/").split("/")
        if parts[:4] == ["api", "models", "owner", "name"]:
            revision = parts[5] if len(parts) > 5 else "main"
            if revision not in ("main", self.hub.commit):
                return self.refuse(404, "RevisionNotFound")
            return self.send_json({"id": "owner/name", "sha": self.hub.commit, "siblings": self.siblings()})
        if parts[:3] == ["owner", "name", "resolve"] and len(parts) == 5:
            if parts[4] not in self.hub.files:
                return self.refuse(404, "EntryNotFound")
            if self.hub.token is not None:
                given = self.headers.get("Authorization")
                if given != f"Bearer {self.hub.token}":
                    return self.refuse(403 if given else 401, "GatedRepo")
            return self.send_file(self.hub.files[parts[4]])
        return self.refuse(404 if self.headers.get("Authorization") else 401, "RepoNotFound")

    def siblings(self) -> list[dict[str, object]]:
        return [{"rfilename": name, "size": len(data), "blobId": "0"} for name, data in self.hub.files.items()]

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "refused")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def send_file(self, data: bytes, send: int | None = None, claim: int | None = None) -> None:
        """The file, or from the Range's first byte on; `send`: bytes after which the connection breaks, `claim`: size told by HEAD."""
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", self.hub.commit)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        length = len(data) - start if claim is None or self.command == "GET" else claim
        self.send_header("Content-Length", str(length))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start:] if send is None else data[start : start + send])
            if send is not None:
                self.close_connection = True
