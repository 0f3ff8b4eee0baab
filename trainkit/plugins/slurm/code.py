"""Copy of a project's code as it is at submission, and its state in git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainkit.errors import ConfigError

_MOST_BYTES = 200 << 20

_MODULES = (".py", ".so", ".pyd")
"""Ends of the names of files that Python imports."""


@dataclass(frozen=True)
class Code:
    """State of the code that a job runs.

    Attributes:
        text: sentence about the code, for the user.
        script: path of the script, in the copy if there is a copy.
        commit: commit of git, or "".
        is_dirty: True if tracked files differ from the commit.
        paths: folders to import from, before all others; empty if the job uses the project's folder itself.
        top: folder of the git repository.
        files: files to be copied, relative to `top`.
    """

    text: str
    script: str
    commit: str = ""
    is_dirty: bool = False
    paths: tuple[str, ...] = ()
    top: Path = Path()
    files: tuple[str, ...] = ()

    def copy(self, into: Path) -> None:
        """Copy the files. Symbolic links stay links, also those that lead out of the repository."""
        for name in self.files:
            source, target = self.top / name, into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not source.is_symlink():
                shutil.copy2(source, target)
            elif source.resolve().is_relative_to(self.top) and not os.path.isabs(source.readlink()):
                target.symlink_to(source.readlink())
            else:
                target.symlink_to(source.resolve())


def code_of(script: str, folder: Path, into: Path | None) -> Code:
    """Return the code of a job: files that git tracks, and files to import that lie beside them.

    Args:
        script: path of the script, relative to `folder`, or the name of a module.
        folder: working folder of the job.
        into: folder for the copy; None means that the job uses the project's folder.

    Raises:
        ConfigError: git can't read the repository, or the files are too large to be copied.
    """
    if not any(os.path.exists(each / ".git") for each in [folder, *folder.parents]):
        text = (
            f"code: {folder} is in no git repository, so the job uses the folder as it is when the job runs"
        )
        return Code(text, script)
    top = Path(_git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))
    commit = _git(top, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip()
    is_dirty = bool(_git(top, "status", "--porcelain", "--untracked-files=no"))
    state = f"commit {commit[:12] or 'none'}" + (" with changes that are not committed" if is_dirty else "")
    if into is None:
        return Code(f"code: {folder} itself, {state} now", script, commit, is_dirty)
    # Built modules are often ignored. A folder that is ignored as a whole, such as .venv, is only named.
    ignored = ["--others", "--ignored", "--exclude-standard", "--directory"]
    names = {
        *_names(top, "--cached", "--recurse-submodules"),
        *(each for each in _names(top, "--others", "--exclude-standard") if each.endswith(".py")),
        *(each for each in _names(top, *ignored) if each.endswith(_MODULES)),
    }
    files = tuple(sorted(each for each in names if (top / each).is_symlink() or (top / each).is_file()))
    size = sum((top / each).lstat().st_size for each in files)
    if size > _MOST_BYTES:
        raise ConfigError(
            f"the {len(files)} files of the code in {top} have {size >> 20} MB, too much for a copy: "
            "pass --no-copy to let the job use the folder itself"
        )
    own = (folder / script).resolve()
    is_copied = own.is_relative_to(top) and f"{own.relative_to(top)}" in files
    text = f"code: a copy of {len(files)} files, {state}"
    if not is_copied and own.is_file():
        text += f"; {script} itself is not in the copy, since git does not track it"
    return Code(
        text,
        f"{into / own.relative_to(top)}" if is_copied else script,
        commit,
        is_dirty,
        tuple(f"{into / each}" for each in _import_folders(folder, top, files)),
        top,
        files,
    )


def _import_folders(folder: Path, top: Path, files: Iterable[str]) -> Iterable[Path]:
    """Return the folders in the repository from which the job imports: this Python's, and the usual ones."""
    here = [Path(each).resolve() for each in sys.path if each and os.path.isdir(each)]
    found = [each.relative_to(top) for each in [folder, *here, top / "src"] if each.is_relative_to(top)]
    copied = {parent for name in files for parent in Path(name).parents}
    return dict.fromkeys(each for each in found if each in copied)


def _names(top: Path, *flags: str) -> list[str]:
    return [name for name in _git(top, "ls-files", "-z", *flags).split("\0") if name]


def _git(folder: Path, *words: str, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, check=False)
    except FileNotFoundError:
        raise ConfigError("git is missing: install it, or load its module") from None
    if done.returncode and not may_fail:
        raise ConfigError(f"git {words[0]} failed in {folder}: {os.fsdecode(done.stderr).strip()}")
    return os.fsdecode(done.stdout)
