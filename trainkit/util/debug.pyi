from trainkit.compat.helpers import disable_log_once_globally as disable_log_once_globally
from trainkit.compat.helpers import enable_periodic_logging as enable_periodic_logging
from trainkit.compat.helpers import log_once as log_once
