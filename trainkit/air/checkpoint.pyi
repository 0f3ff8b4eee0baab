from trainkit.air import Checkpoint as Checkpoint
