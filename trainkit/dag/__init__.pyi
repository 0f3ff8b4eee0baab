from trainkit.runtime.graphs.graph import ClassMethodNode as ClassMethodNode
from trainkit.runtime.graphs.graph import ClassNode as ClassNode
from trainkit.runtime.graphs.graph import DAGNode as DAGNode
from trainkit.runtime.graphs.graph import FunctionNode as FunctionNode
from trainkit.runtime.graphs.graph import InputAttributeNode as InputAttributeNode
from trainkit.runtime.graphs.graph import InputNode as InputNode
from trainkit.runtime.graphs.graph import MultiOutputNode as MultiOutputNode
