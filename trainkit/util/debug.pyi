from trainkit.plugins.compat.ray_util import log_once as log_once
