from trainkit.dashboard.optuna import OptunaDashboard as OptunaDashboard
from trainkit.dashboard.server import Dashboard as Dashboard
from trainkit.dashboard.threads import stand_back as stand_back
