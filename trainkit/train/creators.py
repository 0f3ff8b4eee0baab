"""Operators made of creator functions, as scripts for the first versions of RaySGD are written."""

from __future__ import annotations

import fcntl
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from torch.nn.modules.loss import _Loss

from trainkit.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Creators:
    """The functions; see `TrainingOperator.from_creators`.

    Raises:
        ConfigError: one of them can't be called.
    """

    model_creator: Callable[[dict[str, Any]], Any]
    optimizer_creator: Callable[[Any, dict[str, Any]], Any]
    data_creator: Callable[[dict[str, Any]], Any] | None
    loss_creator: Callable[..., Any] | None
    scheduler_creator: Callable[[Any, dict[str, Any]], Any] | None
    serialize_data_creation: bool

    def __post_init__(self) -> None:
        needed = {"model_creator": self.model_creator, "optimizer_creator": self.optimizer_creator}
        others = {
            name: function
            for name in ("data_creator", "loss_creator", "scheduler_creator")
            if (function := getattr(self, name)) is not None
        }
        wrong = [
            f"{name}={function!r}"
            for name, function in {**needed, **others}.items()
            if not callable(function)
        ]
        if wrong:
            raise ConfigError(f"from_creators: {', '.join(wrong)}: give functions")


class CreatorOperator:
    """What `TrainingOperator.from_creators` adds to an operator: a `setup` that calls the creators."""

    creators: ClassVar[Creators]

    register: Callable[..., Any]
    register_data: Callable[..., Any]

    def setup(self, config: dict[str, Any]) -> None:
        creators = self.creators
        # The data first, as RaySGD did: with a seed the model starts from the same weights.
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


def operator_from(base: type[T], creators: Creators) -> type[T]:
    """A subclass of `base`, an operator, whose `setup` calls `creators`."""
    attributes = {"creators": creators, "__doc__": CreatorOperator.__doc__}
    return cast("type[T]", type("CreatorOperator", (CreatorOperator, base), attributes))


def _loaders(creators: Creators, config: dict[str, Any]) -> tuple[Any, Any]:
    if creators.data_creator is None:
        return None, None
    if creators.serialize_data_creation:
        with _one_at_a_time():
            made = creators.data_creator(config)
    else:
        made = creators.data_creator(config)
    loaders = tuple(made) if isinstance(made, (list, tuple)) else (made,)
    if not 1 <= len(loaders) <= 2 or loaders[0] is None:
        raise ConfigError(
            f"data_creator returned {made!r}: it returns a train loader, or a train and a validation loader"
        )
    return loaders[0], loaders[1] if len(loaders) == 2 else None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """A block that one of this user's processes runs at a time, so that only one downloads the data."""
    path = Path(tempfile.gettempdir()) / f"trainkit-data-{os.getuid()}.lock"
    # Not through a link, which somebody else could have laid in a folder that all may write to.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
