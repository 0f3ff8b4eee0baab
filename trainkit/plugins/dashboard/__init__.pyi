from trainkit.plugins.dashboard.machines import Hosts as Hosts
from trainkit.plugins.dashboard.optuna import OptunaDashboard as OptunaDashboard
from trainkit.plugins.dashboard.server import Dashboard as Dashboard
from trainkit.plugins.dashboard.threads import stand_back as stand_back
