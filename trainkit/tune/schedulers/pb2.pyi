from trainkit.plugins.pb2.scheduler import *
