"""Hydra's jobs in the processes of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

INSTALLED = "hydra_plugins.trainkit_plugins"
"""Import path of the installed copy of `names.py`."""


@dataclass(frozen=True)
class JobRunner:
    """Function that runs one job of a multirun, in any process that receives this object.

    Attributes:
        context: Hydra's loader of configurations, and its callbacks.
        config: configuration of the multirun.
        function: the user's function.
        state: Hydra's global objects, such as registered configurations and resolvers.
    """

    context: HydraContext
    config: DictConfig
    function: TaskFunction
    state: Any

    @classmethod
    def of(cls, context: HydraContext, config: DictConfig, function: TaskFunction) -> JobRunner:
        """Return a runner with the global objects of this process."""
        return cls(context, config, function, Singleton.get_state())

    def __call__(self, number: int, overrides: Sequence[str]) -> JobReturn:
        """Run the job of this number in its own folder; an exception of the job is in the JobReturn."""
        setup_globals()
        Singleton.set_state(self.state)
        loader = self.context.config_loader
        config = loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{number}"
            config.hydra.job.num = number
        HydraConfig.instance().set_config(config)
        return run_job(
            hydra_context=self.context,
            task_function=self.function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def begin(config: DictConfig) -> Path:
    """Prepare Hydra's log and the folder of the multirun, and return this folder."""
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    folder = Path(str(config.hydra.sweep.dir))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def failed(overrides: Sequence[str], error: Exception) -> JobReturn:
    """Return the JobReturn of a job whose process failed."""
    return JobReturn(overrides=list(overrides), status=JobStatus.FAILED, _return_value=error)
