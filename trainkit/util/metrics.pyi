from trainkit.plugins.compat.core.metrics import Counter as Counter
from trainkit.plugins.compat.core.metrics import Gauge as Gauge
from trainkit.plugins.compat.core.metrics import Histogram as Histogram
from trainkit.plugins.compat.core.metrics import Metric as Metric
from trainkit.plugins.compat.core.metrics import prometheus_text as prometheus_text
