from trainkit.plugins.compat.core.graph import InputAttributeNode as InputAttributeNode
from trainkit.plugins.compat.core.graph import InputNode as InputNode
