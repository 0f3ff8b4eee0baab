"""What a strategy answers: where a model lives, who sees which data, how backward runs, what the state is.

The step loop calls nothing of a strategy but `backward`. Everything else happens before the first step
or between epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from trainkit.train.data import Feed
from trainkit.train.process_group import WorkerGroup


class Strategy(Protocol):
    """One way to train on one or several workers; every worker holds an instance.

    Attributes:
        devices: of this worker; the first is where its batches go.
        group: the workers that train together.
    """

    devices: tuple[torch.device, ...]
    group: WorkerGroup

    def place_model(self, model: nn.Module, ddp_args: Mapping[str, Any]) -> nn.Module:
        """The module to train: on its device, with worker 0's initial weights, wrapped if need be.

        Parameters stay the same objects, as the user's optimizers hold them already.
        """

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own module within a placed one."""

    def split_data(self, loader: Iterable[Any], *, training: bool) -> Feed:
        """This worker's share of a registered loader."""

    def backward(self, loss: torch.Tensor, weight: float) -> None:
        """Compute gradients, averaged over workers.

        Args:
            loss: mean over this worker's samples.
            weight: share of the worker's samples in the step's, times the world size; see `Feed.weight`.
        """

    def evaluation(self) -> AbstractContextManager[None]:
        """A block in which forward passes of placed models involve no other worker; entered by all."""

    def leave(self) -> None:
        """Part from the other workers; placed models can't be trained any more."""

    def state(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, Any]:
        """`models` and `optimizers` as lists of state dictionaries, whole, under the user's own names."""

    def load_state(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ) -> None:
        """Take over what `state` returned, on any strategy and world size."""
