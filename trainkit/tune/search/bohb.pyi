from trainkit.plugins.searchers.bohb import TuneBOHB as TuneBOHB
