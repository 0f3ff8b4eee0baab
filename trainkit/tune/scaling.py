"""`ScalingConfig`: a group of equal workers as what a trial reserves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainkit.resources import normalize, total
from trainkit.tune.checks import is_whole, require
from trainkit.tune.placement import PlacementGroupFactory


@dataclass(frozen=True)
class ScalingConfig:
    """A trial that starts `num_workers` processes: what they and the one that starts them reserve.

    As in Ray, the trial's own process takes none of it: it is for trials whose work is done by tasks, actors
    or trainers that they start. A function that computes by itself asks by {"cpu": 2, "gpu": 1}.

    Args:
        trainer_resources: for what coordinates the workers, beside the first of them; None: 1 CPU.
        num_workers: how many.
        use_gpu: a GPU for each worker.
        resources_per_worker: such as {"CPU": 2, "GPU": 0.5}; None: 1 CPU, or 1 GPU where `use_gpu`.
        placement_strategy: as of `PlacementGroupFactory`.
        accelerator_type: Ray's; of one machine there is no choice.

    Raises:
        ConfigError: a value is out of range, or two contradict each other.
    """

    trainer_resources: Mapping[str, float] | None = None
    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None

    def __post_init__(self) -> None:
        require(
            is_whole(self.num_workers) and self.num_workers >= 0,
            f"num_workers={self.num_workers!r}: give a number of workers",
        )
        require(
            self.accelerator_type is None,
            f"accelerator_type={self.accelerator_type!r}: machines aren't chosen by accelerators here; "
            "declare a resource by trainkit.init(resources={'A100': 1}) and name it in resources_per_worker",
        )
        gpus = normalize(self.resources_per_worker or {}, what="resources_per_worker").get("GPU", 0)
        asked = self.resources_per_worker is not None and any(
            name.lower() == "gpu" for name in self.resources_per_worker
        )
        require(
            self.use_gpu or gpus == 0, f"resources_per_worker asks for {gpus:g} GPU, but use_gpu is False"
        )
        require(
            not (self.use_gpu and asked and gpus == 0), "use_gpu is True, but resources_per_worker has GPU=0"
        )

    @property
    def _worker(self) -> dict[str, float]:
        if self.resources_per_worker is None:
            return {"GPU": 1} if self.use_gpu else {"CPU": 1}
        worker = normalize(self.resources_per_worker, what="resources_per_worker")
        return {"GPU": 1, **worker} if self.use_gpu else worker

    @property
    def _trainer(self) -> dict[str, float]:
        if self.trainer_resources is None:
            return {"CPU": 1}
        return normalize(self.trainer_resources, what="trainer_resources")

    @property
    def num_cpus_per_worker(self) -> float:
        """CPUs of each worker."""
        return self._worker.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        """GPUs of each worker."""
        return self._worker.get("GPU", 0)

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """What each worker takes besides CPUs and GPUs."""
        return {name: amount for name, amount in self._worker.items() if name not in ("CPU", "GPU")}

    @property
    def total_resources(self) -> dict[str, float]:
        """All of a trial, by resource name."""
        return total([self._trainer, *[self._worker] * self.num_workers])

    def as_placement_group_factory(self) -> PlacementGroupFactory:
        """Return the bundles: none for the trial's process, the coordinator's with the first worker's, ..."""
        first = total([self._trainer, *[self._worker] * min(self.num_workers, 1)])
        rest = [self._worker] * max(self.num_workers - 1, 0)
        return PlacementGroupFactory([{}, first, *rest], self.placement_strategy)
