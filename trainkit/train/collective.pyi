from trainkit.train.torch.context import barrier as barrier
from trainkit.train.torch.context import broadcast_from_rank_zero as broadcast_from_rank_zero
