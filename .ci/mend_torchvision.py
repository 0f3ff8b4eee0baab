"""Let torchvision be imported beside a torch that its compiled operators cannot load into.

Run with the environment's own Python. It looks whether `import torchvision` works, and does nothing if it
does. If the one fault is that the operator `torchvision::nms` does not exist (the operators' library was
built for another torch, and so was not loaded), it leaves two files in site-packages:

    _torchvision_schemas.pth     one line, run when Python starts: installs the finder below
    _torchvision_schemas.py      a finder that, when torchvision is first imported, declares the schemas
                                 of the missing operators, steps aside and lets the import go on

Models, transforms and data sets then work; only calling the compiled operators themselves does not. A
process that never imports torchvision pays some microseconds.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "_torchvision_schemas"

HOOK = '''\
"""Declare the operators that torchvision expects, when it is first imported (see .ci/mend_torchvision.py)."""

import sys


class SchemaFinder:
    """Finds nothing itself: it runs before torchvision's import, once, and then removes itself."""

    library = None  # keeps the declarations alive

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(cls)
        import torch

        cls.library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            cls.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, SchemaFinder)
'''


def try_import() -> str:
    """Return what `import torchvision` prints to standard error in a fresh process; '' if it works."""
    done = subprocess.run(
        [sys.executable, "-c", "import torchvision"], capture_output=True, text=True, timeout=300
    )
    return done.stderr if done.returncode else ""


def main() -> None:
    """Look, mend if needed, look again."""
    fault = try_import()
    if not fault:
        return
    if "operator torchvision::nms does not exist" not in fault:
        sys.exit(f"torchvision does not import, for a reason this script does not know:\n{fault}")
    site_packages = Path(sysconfig.get_paths()["purelib"])
    (site_packages / f"{NAME}.py").write_text(HOOK)
    (site_packages / f"{NAME}.pth").write_text(f"import {NAME}\n")
    if fault := try_import():
        sys.exit(f"torchvision does not import even with its operators declared:\n{fault}")
    print("torchvision: its compiled operators do not fit this torch; declared them, so that it imports")


if __name__ == "__main__":
    main()
