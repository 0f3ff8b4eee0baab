from trainkit.runtime.metrics.metrics import Counter as Counter
from trainkit.runtime.metrics.metrics import Gauge as Gauge
from trainkit.runtime.metrics.metrics import Histogram as Histogram
from trainkit.runtime.metrics.metrics import Metric as Metric
from trainkit.runtime.metrics.metrics import prometheus_text as prometheus_text
