"""Program that runs Ray on one more machine of a session, until it gets SIGTERM; `machines.py` starts it.

Its argument is a JSON object: "address" of the head, "name" of this machine, "folder" for Ray's files and
the "part" of it for this machine, whether the folder "is_kept" after the end, and arguments of `ray.init`
that describe this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from trainkit.plugins.cluster.commands import removed_at_end
from trainkit.runtime.local.system import devices

_OPTIONS = {
    "num_cpus": "--num-cpus",
    "num_gpus": "--num-gpus",
    "_memory": "--memory",
    "object_store_memory": "--object-store-memory",
}


def words_of(asked: dict[str, Any]) -> list[str]:
    """Return the arguments of `ray` that start Ray on this machine, as `asked`."""
    # Ray counts all CPUs of a machine, also those that this program must not use.
    amounts = {"num_cpus": devices.cpu_count(), **asked}
    words = ["start", "--block", f"--address={asked['address']}", f"--node-name={asked['name']}"]
    # Other Rays on this machine must not choose the same ports.
    words += ["--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={asked['folder']}/{asked['part']}"]
    words += [f"{option}={int(amounts[name])}" for name, option in _OPTIONS.items() if name in amounts]
    if "resources" in asked:
        words.append(f"--resources={json.dumps(asked['resources'])}")
    if "labels" in asked:
        words.append("--labels=" + ",".join(f"{name}={value}" for name, value in asked["labels"].items()))
    return words


def main() -> None:
    """Run Ray on this machine."""
    from ray.scripts.scripts import cli

    asked = json.loads(sys.argv[1])
    folder = Path(asked["folder"])
    with contextlib.ExitStack() as end:
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:  # the machines share it, or the user has named it
            if folder.stat().st_uid not in (0, os.getuid()):
                sys.exit(f"{folder} belongs to another user: set RAY_TMPDIR to a folder for Ray's files")
        else:
            if not asked["is_kept"]:
                end.enter_context(removed_at_end(folder))
        cli(words_of(asked), prog_name="ray")


if __name__ == "__main__":
    main()
