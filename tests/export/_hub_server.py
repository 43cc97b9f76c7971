"""A server on 127.0.0.1 that speaks the part of the hub's protocol that creating, committing and fetching use.

It keeps repositories in memory. It is no substitute for the hub: it shows that the requests of the real client, made
with this package's arguments, carry the right files, and that what is fetched is checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Repositories by name, and what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, content: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def say(self, value: object, *, status: int = 200) -> None:
        self.answer(json.dumps(value).encode(), status=status)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:4])
            files = self.server.repositories.get(name)
            if files is None:
                self.answer(b'{"error": "Repository not found"}', status=404, X_Error_Code="RepoNotFound")
            elif parts[4:5] == ["tree"]:
                self.say(
                    [{"type": "file", "path": one, "size": len(data), "oid": _oid(data)} for one, data in files.items()]
                )
            else:
                siblings = [{"rfilename": one} for one in sorted(files)]
                self.say(
                    {"id": name, "modelId": name, "sha": COMMIT, "private": True, "siblings": siblings, "tags": []}
                )
        elif len(parts) > 4 and parts[2] == "resolve":
            data = self.server.repositories["/".join(parts[:2])].get("/".join(parts[4:]))
            if data is None:
                self.answer(b"", status=404, X_Error_Code="EntryNotFound")
            else:
                self.answer(data, kind="application/octet-stream", ETag=f'"{_oid(data)}"')
        else:
            self.say({"error": "not served"}, status=404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self.body()
        self.server.asked.append(f"POST {path}")
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.server.created.append(asked)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.server.repositories.setdefault(name, {})
            self.say({"url": f"{self.server.address}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self.say({"errors": [], "warnings": []})
        elif parts[4:5] == ["preupload"]:
            files = json.loads(body)["files"]
            self.say(
                {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
            )
        elif parts[4:5] == ["commit"]:
            name = "/".join(parts[2:4])
            files = self.server.repositories[name]
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            self.say(
                {"commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
            )
        else:
            self.say({}, status=404)


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
