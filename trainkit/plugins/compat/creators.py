"""Operators made from functions that create models, optimizers and data, as in RaySGD's first versions."""

from __future__ import annotations

import fcntl
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, cast

from torch.nn.modules.loss import _Loss

from trainkit.errors import ConfigError

T = TypeVar("T")


class CreatorOperator:
    """Base class of operators whose `setup` calls the user's functions."""

    _creators: ClassVar[SimpleNamespace]
    """Arguments of `TrainingOperator.from_creators`."""

    register: Callable[..., Any]
    register_data: Callable[..., Any]

    def setup(self, config: dict[str, Any]) -> None:
        creators = self._creators
        # The data is made before the model, as in RaySGD, so that with an equal seed the model has equal
        # initial weights.
        train, validation = _loaders(creators, config)
        models = creators.model_creator(config)
        optimizers = creators.optimizer_creator(models, config)
        given: dict[str, Any] = {"models": models, "optimizers": optimizers}
        if creators.scheduler_creator is not None:
            given["schedulers"] = creators.scheduler_creator(optimizers, config)
        if (loss := creators.loss_creator) is not None:
            plain = inspect.isclass(loss) and issubclass(loss, _Loss)
            given["criterion"] = loss() if plain else loss(config)
        self.register(**given)
        self.register_data(train_loader=train, validation_loader=validation)


def _loaders(creators: SimpleNamespace, config: dict[str, Any]) -> tuple[Any, Any]:
    if creators.data_creator is None:
        return None, None
    with _one_at_a_time() if creators.serialize_data_creation else nullcontext():
        made = creators.data_creator(config)
    loaders = tuple(made) if isinstance(made, (list, tuple)) else (made,)
    if not 1 <= len(loaders) <= 2 or loaders[0] is None:
        raise ConfigError(
            f"data_creator returned {made!r}: it must return a train loader, or "
            "a train and a validation loader"
        )
    return loaders[0], loaders[1] if len(loaders) == 2 else None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock that this user's processes share, so that only one process at a time downloads the data."""
    path = Path(tempfile.gettempdir()) / f"trainkit-data-{os.getuid()}.lock"
    # O_NOFOLLOW is needed, because another user could place a link in the folder, to which all users can
    # write.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def operator_of_creators(base: type[T], *, serialize_data_creation: bool, **given: Any) -> type[T]:
    """Return a subclass of `base`, a `TrainingOperator`, whose `setup` calls the user's functions.

    Args:
        base: the operator's class.
        serialize_data_creation: see `TrainingOperator.from_creators`.
        **given: functions by name; only `model_creator` and `optimizer_creator` are required.

    Raises:
        ConfigError: an argument is not a function.
    """
    needed = ("model_creator", "optimizer_creator")
    if wrong := [
        f"{name}={value!r}"
        for name, value in given.items()
        if not callable(value) and (name in needed or value is not None)
    ]:
        raise ConfigError(f"from_creators() needs functions, not {', '.join(wrong)}")
    creators = SimpleNamespace(**given, serialize_data_creation=serialize_data_creation)
    attributes = {"_creators": creators, "__doc__": CreatorOperator.__doc__}
    return cast("type[T]", type("CreatorOperator", (CreatorOperator, base), attributes))
