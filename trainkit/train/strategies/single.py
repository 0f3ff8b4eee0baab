"""One worker, one device; also the base of strategies that keep a whole model on each worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trainkit.train.data import Feed, make_feed
from trainkit.train.process_group import WorkerGroup


class SingleStrategy:
    """The model on one device, the data as the user's loader gives it.

    Args:
        device: where the model lives.
    """

    def __init__(self, device: torch.device) -> None:
        self.devices: tuple[torch.device, ...] = (device,)
        self.group = WorkerGroup()

    def place_model(self, model: nn.Module, ddp_args: Mapping[str, Any]) -> nn.Module:
        return model.to(self.devices[0])

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def split_data(self, loader: Iterable[Any], *, training: bool) -> Feed:
        return make_feed(loader, group=self.group, training=training, split=False)

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self.group.leave()

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        return {
            "models": [self.unwrap(model).state_dict() for model in models],
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        }

    def load_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        for model, saved in zip(models, state["models"], strict=True):
            self.unwrap(model).load_state_dict(saved)
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
