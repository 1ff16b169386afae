"""A hub on loopback: the part of the Hugging Face hub's API that uploads and downloads of models use.

It keeps what the real one keeps: files belong to a repository only after a commit, which is made as a whole
or not at all; large files are uploaded before it and are checked against their digest.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

TOKEN = "hf_thisIsASecretForTests"


@dataclass
class Repository:
    """A repository: its files after each commit."""

    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b""})
    commits: list[str] = field(default_factory=lambda: ["0" * 40])


class Hub(ThreadingHTTPServer):
    """The server. Paths that contain a part in `refuse` are answered with an error; `hold` blocks uploads."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.refuse: dict[str, str] = {}
        self.held, self.hold = threading.Event(), threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *words):
        pass

    def answer(self, content=None, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code="", message="no"):
        self.answer({"error": message}, status, X_Error_Code=code, X_Error_Message=message)

    def dispatch(self):
        path = self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.command} {path}")
        for part, message in self.server.refuse.items():
            if part in path:
                return self.fail(403, message=message)
        writes = self.command != "GET" and self.command != "HEAD" and not path.startswith("/blobs/")
        if writes and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.fail(401, message="Invalid username or password.")
        for pattern, method in ROUTES:
            if found := re.fullmatch(pattern, path):
                return method(self, body, *found.groups())
        return self.fail(404, message=f"unknown {path}")

    do_GET = do_HEAD = do_POST = do_PUT = dispatch

    def repository(self, name):
        if name not in self.server.repositories:
            self.fail(404, "RepoNotFound", "Repository not found")
        return self.server.repositories.get(name)

    def create(self, body):
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        there = self.server.repositories
        status = 409 if name in there else 200
        private = asked.get("private") or asked.get("visibility") == "private"
        there.setdefault(name, Repository(bool(private)))
        self.answer({"url": f"{self.server.url}/{name}", "name": name}, status)

    def about(self, body, name, *revision):
        if found := self.repository(name):
            siblings = [{"rfilename": file} for file in found.files]
            about = {"id": name, "sha": found.commits[-1], "private": found.private, "siblings": siblings}
            self.answer(about | {"tags": [], "downloads": 0, "likes": 0})

    def tree(self, body, name, revision):
        if found := self.repository(name):
            entry = {"type": "file", "oid": "0" * 40}
            self.answer([entry | {"path": path, "size": len(held)} for path, held in found.files.items()])

    def validate(self, body):
        _, front, *_ = json.loads(body)["content"].split("---\n", 2)
        held = yaml.safe_load(front)
        self.answer({"errors": [], "warnings": []}, 200 if isinstance(held.get("tags"), list) else 400)

    def preupload(self, body, name, revision):
        modes = [
            {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith("tensors") else "regular"}
            for file in json.loads(body)["files"]
        ]
        self.answer({"files": [mode | {"shouldIgnore": False} for mode in modes]})

    def batch(self, body, name):
        objects = [
            entry | {"actions": {"upload": {"href": f"{self.server.url}/blobs/{entry['oid']}"}}}
            for entry in json.loads(body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def blob(self, body, digest):
        self.server.held.set()
        self.server.hold.wait(60)
        if hashlib.sha256(body).hexdigest() != digest:
            return self.fail(400, message="wrong digest")
        self.server.blobs[digest] = body
        return self.answer({})

    def commit(self, body, name, revision):
        found = self.repository(name)
        if found is None:
            return None
        files = dict(found.files)
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header" if value.get("parentCommit") not in (None, found.commits[-1]):
                    return self.fail(412, message="the parent is not the last commit")
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.blobs[value["oid"]]
                case "deletedFile":
                    files.pop(value["path"])
        found.files = files
        found.commits.append(hashlib.sha1(body).hexdigest())
        url = f"{self.server.url}/{name}/commit/{found.commits[-1]}"
        return self.answer({"commitUrl": url, "commitOid": found.commits[-1]})

    def resolve(self, body, name, revision, path):
        if found := self.repository(name):
            if path not in found.files:
                return self.fail(404, "EntryNotFound", "Entry not found")
            held = found.files[path]
            etag = f'"{hashlib.sha1(held).hexdigest()}"'
            return self.answer(held, ETag=etag, X_Repo_Commit=found.commits[-1])
        return None


NAME = r"([^/]+/[^/]+)"
ROUTES = (
    (r"/api/repos/create", Handler.create),
    (r"/api/validate-yaml", Handler.validate),
    (rf"/api/models/{NAME}/tree/(.+)", Handler.tree),
    (rf"/api/models/{NAME}/preupload/(.+)", Handler.preupload),
    (rf"/api/models/{NAME}/commit/(.+)", Handler.commit),
    (rf"/api/models/{NAME}(?:/revision/(.+))?", Handler.about),
    (rf"/{NAME}\.git/info/lfs/objects/batch", Handler.batch),
    (r"/blobs/(\w+)", Handler.blob),
    (rf"/{NAME}/resolve/([^/]+)/(.+)", Handler.resolve),
)


@contextmanager
def running_hub():
    """Yield a hub that answers on loopback."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.hold.set()
            hub.shutdown()
            thread.join()


def environment(hub, folder):
    """Return the variables that make the hub's library use this hub, with a token and a cache of its own."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(folder),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
