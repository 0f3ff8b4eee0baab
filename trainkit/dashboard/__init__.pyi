from trainkit.dashboard.optuna import OptunaDashboard as OptunaDashboard
from trainkit.dashboard.server import Dashboard as Dashboard
