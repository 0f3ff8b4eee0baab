from trainkit.plugins.schedulers.pb2 import PB2 as PB2
