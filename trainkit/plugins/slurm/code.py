"""Copy of a project's code as it is at submission, and its state in git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trainkit.errors import ConfigError

_MOST_BYTES = 200 << 20


@dataclass(frozen=True)
class Code:
    """State of the code that a job runs.

    Attributes:
        text: sentence about the code, for the user.
        commit: commit of git, or "".
        is_dirty: True if tracked files differ from the commit.
        paths: folders to import from, before all others; empty if the job uses the project's folder itself.
        script: path of the script, in the copy if there is a copy.
    """

    text: str
    commit: str
    is_dirty: bool
    paths: tuple[str, ...]
    script: str


def keep_code(script: str, folder: Path, into: Path | None) -> Code:
    """Copy the files that git tracks, and Python files that git does not ignore; return the code's state.

    Args:
        script: path of the script, relative to `folder`, or the name of a module.
        folder: working folder of the job.
        into: folder for the copy; None means that the job uses the project's folder.

    Raises:
        ConfigError: the files are too large to be copied.
    """
    found = _git(folder, "rev-parse", "--show-toplevel")
    if found is None:
        text = (
            f"code: {folder} is in no git repository, so the job uses the folder as it is when the job runs"
        )
        return Code(text, "", False, (), script)
    top = Path(found)
    commit = _git(top, "rev-parse", "HEAD") or ""
    is_dirty = bool(_git(top, "status", "--porcelain", "--untracked-files=no"))
    state = f"commit {commit[:12] or 'none'}" + (" with changes that are not committed" if is_dirty else "")
    if into is None:
        return Code(f"code: {folder} itself, {state} now", commit, is_dirty, (), script)
    names = set((_git(top, "ls-files", "-z", "--cached") or "").split("\0"))
    names |= set(
        (_git(top, "ls-files", "-z", "--others", "--exclude-standard", "--", "*.py") or "").split("\0")
    )
    files = sorted(name for name in names if name and (top / name).is_file())
    size = sum((top / name).stat().st_size for name in files)
    if size > _MOST_BYTES:
        raise ConfigError(
            f"the {len(files)} files that git tracks in {top} have {size >> 20} MB, too much for a copy: "
            "pass --no-copy to let the job use the folder itself"
        )
    for name in files:
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(top / name, target)
    inside = folder.relative_to(top)
    paths = [into / inside, *(into / each for each in _import_folders(top))]
    own = (folder / script).resolve()
    copied = own.is_relative_to(top) and f"{own.relative_to(top)}" in names
    text = f"code: a copy of {len(files)} files, {state}"
    if not copied and own.is_file():
        text += f"; {script} itself is not in the copy, since git does not track it"
    return Code(
        text,
        commit,
        is_dirty,
        tuple(dict.fromkeys(f"{path}" for path in paths if path.is_dir())),
        f"{into / own.relative_to(top)}" if copied else script,
    )


def _import_folders(top: Path) -> list[Path]:
    """Return the folders in the repository from which this Python imports, as an editable install does."""
    found = [Path(each).resolve() for each in sys.path if each and os.path.isdir(each)]
    return [each.relative_to(top) for each in found if each.is_relative_to(top)]


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of a git command; None if git is missing or the command fails."""
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
