"""What tests of copies share: a trainable that saves, and a file system that raises when it is told to."""

from __future__ import annotations

from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from tests.tune.pausing import steps
from trainkit import tune


def saving(config):
    """Four reports, each with a checkpoint and a file of its own."""
    trial_dir = Path(tune.get_context().get_trial_dir())
    for step, saved in steps(config.get("steps", 4)):
        (trial_dir / "notes.txt").write_text(f"step {step}")
        tune.report({"step": step}, checkpoint=saved)
        (trial_dir / "last.txt").write_text(str(step))


class Fails(LocalFileSystem):
    """A folder of this machine as a file system that raises when it is told to."""

    protocol = "fails"
    cachable = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.when = lambda path: False
        self.puts: list[str] = []

    def put_file(self, lpath, rpath, **kwargs):
        self.puts.append(rpath)
        if self.when(rpath):
            raise OSError("the line is dead")
        super().put_file(lpath, rpath, **kwargs)


def at(fs, tmp_path: Path, **more) -> dict:
    return {"storage_path": str(tmp_path / "there"), "storage_filesystem": fs, **more}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


LOCAL_ONLY = {"experiment.lock", "experiment.sqlite-wal", "experiment.sqlite-shm"}
