"""Servers on this machine that can hold a shared cache, and what goes wrong between them and their users."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_UNTIL_UP_S = 30


@dataclass(kw_only=True)
class Server:
    """A server, and its files from behind.

    Attributes:
        url: The folder of the cache.
        port: Where it listens.
        environment: What its users have to have there, to log in.
        entries: The files of the cache.
        write: Puts a file there.
    """

    url: str
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    entries: Callable[[], dict[str, bytes]]
    write: Callable[[str, bytes], Any]

    @classmethod
    def of_folder(cls, folder: Path, **known: Any) -> Server:
        """One whose files lie in a folder of this machine."""

        def entries() -> dict[str, bytes]:
            return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}

        def write(name: str, data: bytes) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

        return cls(entries=entries, write=write, **known)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    try:
        _wait_for(port, process)
        yield
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(10 * _UNTIL_UP_S):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None
        time.sleep(0.1)
    raise TimeoutError


@contextmanager
def s3(folder: Path) -> Iterator[Server]:
    """moto's server of S3, with a bucket."""
    import s3fs

    port = free_port()
    serve = ["-c", f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"]
    logged_in = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with _running([sys.executable, *serve], port, folder):
        behind = s3fs.S3FileSystem(
            key="somebody", secret="secret", endpoint_url=logged_in["AWS_ENDPOINT_URL"], use_listings_cache=False
        )
        behind.mkdir("bucket")
        yield Server(
            url="s3://bucket/hloscope",
            port=port,
            environment=logged_in,
            entries=lambda: _in_bucket(behind),
            write=lambda name, data: behind.pipe_file(f"bucket/hloscope/{name}", data),
        )


def _in_bucket(behind: Any) -> dict[str, bytes]:
    paths = behind.ls("bucket/hloscope") if behind.exists("bucket/hloscope") else []
    return {path.rpartition("/")[2]: behind.cat_file(path) for path in paths}


@contextmanager
def webdav(folder: Path, *, as_http: bool = False) -> Iterator[Server]:
    """wsgidav behind a password; as a web server where it is read and written with plain GET and PUT."""
    port = free_port()
    files = folder / "files" / "hloscope"
    files.mkdir(parents=True)
    known = {
        "host": "127.0.0.1",
        "port": port,
        "provider_mapping": {"/": str(files.parent)},
        "simple_dc": {"user_mapping": {"*": {"somebody": {"password": "secret"}}}},
    }
    (folder / "wsgidav.json").write_text(json.dumps(known))
    serve = ["-c", "from wsgidav.server.server_cli import run; run()", "--config", "wsgidav.json", "--no-config"]
    with _running([sys.executable, *serve[:-1]], port, folder):
        if as_http:
            yield Server.of_folder(files, url=f"http://somebody:secret@127.0.0.1:{port}/hloscope", port=port)
        else:
            environment = {"FSSPEC_WEBDAV_BASE_URL": f"http://somebody:secret@127.0.0.1:{port}"}
            yield Server.of_folder(files, url="webdav://hloscope", port=port, environment=environment)


@contextmanager
def sftp(folder: Path) -> Iterator[Server]:
    """OpenSSH's server, which knows its users by their keys."""
    port, home = free_port(), folder / "home"
    (home / ".ssh").mkdir(parents=True)
    for name in (folder / "host", home / ".ssh" / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name], check=True)
    lines = (
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        f"HostKey {folder / 'host'}",
        f"AuthorizedKeysFile {home / '.ssh' / 'id_ed25519.pub'}",
        "PidFile none",
        "StrictModes no",
        "PasswordAuthentication no",
        "PermitRootLogin yes",
        "Subsystem sftp internal-sftp",
    )
    (folder / "config").write_text("\n".join(lines))
    Path("/run/sshd").mkdir(exist_ok=True)
    command = [sshd() or "", "-D", "-e", "-f", str(folder / "config")]
    files = folder / "files" / "hloscope"
    with _running(command, port, folder):
        url = f"sftp://{os.environ.get('USER') or 'root'}@127.0.0.1:{port}{files}"
        yield Server.of_folder(files, url=url, port=port, environment={"HOME": str(home)})


def sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def read_only_web(folder: Path) -> Iterator[Server]:
    """Python's own web server, which knows no PUT."""
    port, files = free_port(), folder / "files"
    (files / "hloscope").mkdir(parents=True)
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(files)]
    with _running(command, port, folder):
        yield Server.of_folder(files / "hloscope", url=f"http://127.0.0.1:{port}/hloscope", port=port)


class Proxy:
    """What stands between users and a server, and may stop passing on.

    Attributes:
        port: Where it listens.
        mode: `pass`; `refuse` closes connections; `hang` answers nothing; `cut` ends each answer after some bytes.
        requests: How many it passes on before it hangs.
    """

    def __init__(self, target: int) -> None:
        self.mode = "pass"
        self.requests = 1_000_000
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        for each in (self._listening, *self._open):
            each.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self.mode == "refuse":
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := here.recv(1 << 16):
                self.requests -= not is_answer
                if self.mode == "hang" or self.requests < 0:
                    continue
                if self.mode == "refuse" or (self.mode == "cut" and is_answer):
                    there.sendall(data[:40] if self.mode == "cut" else b"")
                    there.shutdown(socket.SHUT_RDWR)
                    return
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)


@contextmanager
def answering(status: int = 200, body: bytes = b"<html>log in</html>", *, after_s: float = 0.0) -> Iterator[str]:
    """A web server that always says the same; its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(after_s)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = answer  # noqa: N815  (http.server's names)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
