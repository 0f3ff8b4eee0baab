from trainkit.runtime.observability.metrics import Counter as Counter
from trainkit.runtime.observability.metrics import Gauge as Gauge
from trainkit.runtime.observability.metrics import Histogram as Histogram
from trainkit.runtime.observability.metrics import Metric as Metric
from trainkit.runtime.observability.metrics import prometheus_text as prometheus_text
