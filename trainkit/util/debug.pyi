from trainkit.compat.ray_util import log_once as log_once
