from trainkit.compat.ray_util import disable_log_once_globally as disable_log_once_globally
from trainkit.compat.ray_util import enable_periodic_logging as enable_periodic_logging
from trainkit.compat.ray_util import log_once as log_once
