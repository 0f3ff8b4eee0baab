from trainkit.plugins.compat.core.graph import MultiOutputNode as MultiOutputNode
