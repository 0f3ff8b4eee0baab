from trainkit.compat.helpers import as_completed as as_completed
from trainkit.compat.helpers import map_unordered as map_unordered
