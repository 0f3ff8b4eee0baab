from trainkit.runtime.graphs.graph import MultiOutputNode as MultiOutputNode
