"""`hydra/launcher=trainkit`: Hydra's own suite for launchers, and jobs in parallel."""

from __future__ import annotations

import pytest
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite


@pytest.mark.parametrize(("launcher_name", "overrides"), [("trainkit", [])])
class TestLauncher(LauncherTestSuite):
    """Hydra's suite in this process."""


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({}, ["-m", "hydra/job_logging=hydra_debug", "hydra/job_logging=disabled", "hydra/launcher=trainkit"])],
)
class TestLauncherIntegration(IntegrationTestSuite):
    """Hydra's suite with programs."""
