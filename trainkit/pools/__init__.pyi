from trainkit.plugins.pools import *
