"""`MultiheadAttention` takes the place of torch's layer of that name; `replace` swaps it into an existing model.

>>> import torch
>>> from regard.interop.torch import replace
>>> network = replace(torch.nn.TransformerEncoderLayer(d_model=16, nhead=4, batch_first=True))
>>> network(torch.randn(2, 7, 16)).shape
torch.Size([2, 7, 16])
"""

from regard.interop.torch.checks import TorchMisuse
from regard.interop.torch.multihead_attention import MultiheadAttention
from regard.interop.torch.replacing import replace, restore

__all__ = ["MultiheadAttention", "TorchMisuse", "replace", "restore"]
