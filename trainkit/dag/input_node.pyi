from trainkit.runtime.graphs.graph import InputAttributeNode as InputAttributeNode
from trainkit.runtime.graphs.graph import InputNode as InputNode
