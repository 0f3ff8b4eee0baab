from trainkit.runtime.placement import DoesNotExist as DoesNotExist
from trainkit.runtime.placement import Exists as Exists
from trainkit.runtime.placement import In as In
from trainkit.runtime.placement import NodeLabelSchedulingStrategy as NodeLabelSchedulingStrategy
from trainkit.runtime.placement import NotIn as NotIn
from trainkit.runtime.scheduling import NodeAffinitySchedulingStrategy as NodeAffinitySchedulingStrategy
from trainkit.runtime.scheduling import PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy
from trainkit.runtime.scheduling import SchedulingStrategy as SchedulingStrategy
