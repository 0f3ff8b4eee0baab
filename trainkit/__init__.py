"""Train PyTorch models on many workers, tune anything, search over scikit-learn estimators.

    from trainkit.train import TorchTrainer, TrainingOperator
    from trainkit import tune

Everything here is loaded when first used. Names are in `__init__.pyi`.
"""

from __future__ import annotations

from trainkit.compat import finder
from trainkit.lazy import from_stub

finder.install()

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = from_stub(__name__)
__all__ += ["__version__"]
