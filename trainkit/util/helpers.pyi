from trainkit.plugins.compat.ray_util import as_completed as as_completed
from trainkit.plugins.compat.ray_util import map_unordered as map_unordered
