"""Files of a release that isn't installed here, which pip downloads into build/ once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.plugins.compat.peers.base import ROOT

BACKEND = """\
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    made = pathlib.Path(folder, "{stem}-{version}.dist-info")
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return made.name
"""
"""What pip asks for a sdist's metadata before it downloads it, in place of a build with compilers."""


@dataclass(frozen=True)
class Archive:
    """File of a release.

    Attributes:
        name: of the package.
        version: of the release.
        sha256: of the file.
        backend: module that builds the package, of a sdist.
        wheel_for: pip's options for the Python that a wheel is for.
    """

    name: str
    version: str
    sha256: str
    backend: str = ""
    wheel_for: tuple[str, ...] = ()

    def folder(self) -> Path:
        """Return the folder of its unpacked files.

        Raises:
            subprocess.CalledProcessError: pip can't download it; it has said why.
        """
        folder = ROOT / "build" / "peers" / f"{self.name}-{self.version}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
                unpacked = Path(aside, "unpacked")
                shutil.unpack_archive(self._downloaded(Path(aside)), unpacked)
                unpacked.rename(folder)
        return folder

    def _downloaded(self, aside: Path) -> Path:
        wanted, backend, got = aside / "wanted.txt", aside / "backend", aside / "got"
        wanted.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        backend.mkdir()
        if self.backend:
            text = BACKEND.format(name=self.name, stem=self.name.replace("-", "_"), version=self.version)
            (backend / f"{self.backend}.py").write_text(text)
        only = ("--only-binary=:all:", *self.wheel_for) if self.wheel_for else ("--no-binary=:all:",)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run(
            [*command, *only, "--dest", got, "--requirement", wanted],
            env={**os.environ, "PYTHONPATH": str(backend)},
            check=True,
        )
        (file,) = got.iterdir()
        # A wheel is a zip file by another name.
        return file.rename(file.with_suffix(".zip")) if file.suffix == ".whl" else file
