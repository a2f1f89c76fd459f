"""What examples/torch/train_step.py should print: the same step in PyTorch's own memory. One
process computes all ranks' parts.

    python3 tests/gpu/torch_step.py RANKS

It prints the gradients' norm, and each rank's loss after the step.
"""
import sys

import torch

ranks = int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(),
                            torch.nn.Linear(2048, 512)).cuda()
batches = []
for rank in range(ranks):
    torch.manual_seed(1 + rank)
    batches.append(torch.randn(64, 512).cuda())
    (model(batches[rank]).square().mean() / ranks).backward()
norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print(f"{norm:.6e}", *(f"{model(batch).square().mean():.6e}" for batch in batches))
