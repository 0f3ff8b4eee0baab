from trainkit.runtime.labels import DoesNotExist as DoesNotExist
from trainkit.runtime.labels import Exists as Exists
from trainkit.runtime.labels import In as In
from trainkit.runtime.labels import NodeLabelSchedulingStrategy as NodeLabelSchedulingStrategy
from trainkit.runtime.labels import NotIn as NotIn
from trainkit.runtime.scheduling import NodeAffinitySchedulingStrategy as NodeAffinitySchedulingStrategy
from trainkit.runtime.scheduling import PlacementGroupSchedulingStrategy as PlacementGroupSchedulingStrategy
from trainkit.runtime.scheduling import SchedulingStrategy as SchedulingStrategy
