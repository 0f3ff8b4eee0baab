from trainkit.plugins.repeater.repeater import *
