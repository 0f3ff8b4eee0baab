"""Classes by which Hydra finds the launcher and the sweeper, installed as `hydra_plugins.trainkit_plugins`.

Hydra loads only plugins whose classes are defined in the namespace package `hydra_plugins`.
"""

from __future__ import annotations

from trainkit.plugins.hydra import launcher, sweeper


class TrainkitLauncher(launcher.JobLauncher):
    """`hydra/launcher=trainkit`: jobs that run in parallel as tasks."""


class TrainkitSweeper(sweeper.TuneSweeper):
    """`hydra/sweeper=trainkit`: jobs that run as the trials of a Tuner."""
