from trainkit.plugins.compat.core.graph import ClassMethodNode as ClassMethodNode
from trainkit.plugins.compat.core.graph import ClassNode as ClassNode
from trainkit.plugins.compat.core.graph import DAGNode as DAGNode
from trainkit.plugins.compat.core.graph import FunctionNode as FunctionNode
from trainkit.plugins.compat.core.graph import InputAttributeNode as InputAttributeNode
from trainkit.plugins.compat.core.graph import InputNode as InputNode
from trainkit.plugins.compat.core.graph import MultiOutputNode as MultiOutputNode
