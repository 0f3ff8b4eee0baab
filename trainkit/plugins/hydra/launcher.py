"""Launcher that runs the jobs of a multirun in parallel."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

import trainkit
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.hydra.jobs import INSTALLED, JobRunner, begin, failed

log = logging.getLogger(__name__)


@dataclass
class LauncherSettings:
    """Settings below `hydra.launcher`.

    Attributes:
        cpus: CPUs of each job.
        gpus: GPUs of each job; 0.5 lets two jobs share a GPU.
        n_jobs: maximum number of jobs that run at once; None: as many as the resources allow.
        address: address for `trainkit.init`, such as "auto" for a Ray cluster; None: this machine.
    """

    _target_: str = f"{INSTALLED}.TrainkitLauncher"
    cpus: float = 1.0
    gpus: float = 0.0
    n_jobs: int | None = None
    address: str | None = None


ConfigStore.instance().store("trainkit", LauncherSettings, "hydra/launcher", provider="trainkit")


class JobLauncher(Launcher):
    """Launcher whose jobs are tasks, each in a process of its own.

    Args:
        cpus, gpus, n_jobs, address: see `LauncherSettings`.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(self, cpus: float, gpus: float, n_jobs: int | None, address: str | None) -> None:
        for name, value, least in (("cpus", cpus, 0), ("gpus", gpus, 0), ("n_jobs", n_jobs, 1)):
            if value is not None and value < least:
                raise ConfigError(f"hydra.launcher.{name}={value}: give {least} or more")
        self.cpus = cpus
        self.gpus = gpus
        self.n_jobs = n_jobs
        self.address = address

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def session(self) -> contextlib.AbstractContextManager[object]:
        """Return the program's session, or a new session that ends with the block."""
        if trainkit.is_initialized():
            return contextlib.nullcontext()
        return trainkit.init(address=self.address)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs and return their results in the order of `job_overrides`."""
        folder = begin(self.config)
        log.info(f"trainkit launches {len(job_overrides)} jobs, output folder: {folder}")
        runner = JobRunner.of(self.hydra_context, self.config, self.task_function)
        with self.session():
            shared = trainkit.put(runner)
            run = trainkit.remote(_run).options(
                num_cpus=self.cpus, num_gpus=self.gpus, max_calls=1, max_retries=0
            )
            refs: list[trainkit.ObjectRef[JobReturn]] = []
            for place, overrides in enumerate(job_overrides):
                if self.n_jobs is not None and place >= self.n_jobs:
                    trainkit.wait(refs, num_returns=place - self.n_jobs + 1)
                number = initial_job_idx + place
                log.info(f"\t#{number} : {' '.join(filter_overrides(overrides))}")
                refs.append(run.remote(shared, number, list(overrides)))
            return [_result(ref, overrides) for ref, overrides in zip(refs, job_overrides, strict=True)]


def _run(runner: JobRunner, number: int, overrides: Sequence[str]) -> JobReturn:
    return runner(number, overrides)


def _result(ref: trainkit.ObjectRef[JobReturn], overrides: Sequence[str]) -> JobReturn:
    try:
        done: JobReturn = trainkit.get(ref)
    except TrainkitError as error:  # the other jobs still have results
        return failed(overrides, error)
    return done
