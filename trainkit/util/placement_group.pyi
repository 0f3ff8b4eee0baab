from trainkit.plugins.compat.ray_util import placement_group_table as placement_group_table
from trainkit.runtime.api import get_current_placement_group as get_current_placement_group
from trainkit.runtime.api import get_placement_group as get_placement_group
from trainkit.runtime.api import placement_group as placement_group
from trainkit.runtime.api import remove_placement_group as remove_placement_group
from trainkit.runtime.scheduling import PlacementGroup as PlacementGroup
