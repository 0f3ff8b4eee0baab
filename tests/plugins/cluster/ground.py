"""Hosts for SSH on this machine: several sshd on ports of the loopback address, with keys of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from tests.conftest import eventually

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def reason_to_skip() -> str:
    """Why hosts for SSH can't be had here; "" if they can."""
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "needs ssh, ssh-keygen and sshd (Debian: openssh-server)"
    return ""


class Hosts:
    """Hosts `h1`, `h2`, ... that `ssh` knows while the block runs.

    Args:
        folder: for keys, settings and logs. Its subfolder `bin` has an `ssh` that reads these settings, not
            the user's.
        count: number of hosts.
        homes: True: each host has a home of its own, the folder with its name.
    """

    def __init__(self, folder: Path, count: int = 3, *, homes: bool = False) -> None:
        self.folder, self._homes = folder, homes
        self.names = [f"h{number + 1}" for number in range(count)]
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
            )
        shutil.copy(folder / "user.pub", folder / "authorized")
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        lines = []
        for name in self.names:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            (folder / f"{name}.conf").write_text(
                f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile {folder}/{name}.pid\n"
                f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
                "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
                + f"SetEnv HOME={folder / name}\n"
                * self._homes
            )
            (folder / name).mkdir(exist_ok=True)
            lines.append(f"Host {name}\nHostName 127.0.0.1\nPort {port}\n")
            self.begin(name)
        (folder / "config").write_text(
            "".join(lines) + f"Host *\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {folder}/known\nStrictHostKeyChecking no\nLogLevel ERROR\n"
        )
        (folder / "bin").mkdir()
        ssh = folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        ssh.chmod(0o755)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for name in self.names:
            self.end(name)

    def begin(self, name: str) -> None:
        """Start the server of a host, again."""
        assert SSHD is not None
        log = str(self.folder / f"{name}.log")
        command = [SSHD, "-D", "-f", str(self.folder / f"{name}.conf"), "-E", log]
        self._servers[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        port = int((self.folder / f"{name}.conf").read_text().split()[1].rpartition(":")[2])

        def listens() -> bool:
            assert self._servers[name].poll() is None, Path(log).read_text()
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        assert eventually(listens), Path(log).read_text()

    def change(self, name: str, line: str) -> None:
        """Add a line to the settings of a host's server, and start the server again."""
        with (self.folder / f"{name}.conf").open("a") as file:
            file.write(f"{line}\n")
        self.end(name)
        self.begin(name)

    def end(self, name: str) -> None:
        """End a host: its server, and all processes that were started through it, by SIGKILL."""
        server = self._servers[name]
        if server.poll() is None:
            lost = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none may begin or end another
                for process in lost:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
            server.wait()

    def environment(self, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return environment variables with which `ssh` knows the hosts."""
        return {**variables, "PATH": f"{self.folder / 'bin'}:{variables['PATH']}"}
