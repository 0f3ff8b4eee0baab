from trainkit.runtime import session as session
from trainkit.runtime.api import placement_group as placement_group
from trainkit.runtime.failures import formatted as formatted
from trainkit.runtime.failures import last_user_frame as last_user_frame
