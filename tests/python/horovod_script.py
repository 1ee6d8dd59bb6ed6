"""Horovod's usual script for PyTorch, on images that are made up."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data.distributed
import horovod.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.view(-1, 320)))), dim=1)


hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
labels = torch.arange(320) % 10
images = torch.randn(320, 1, 28, 28) * 0.3 + labels.view(-1, 1, 1, 1) / 5
train_dataset = torch.utils.data.TensorDataset(images, labels)
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=64 // hvd.size(), sampler=train_sampler)

model = Net()
lr_scaler = hvd.size() if hvd.size() < 1 else 1
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression,
                                     op=hvd.Average, gradient_predivide_factor=1.0)


def metric_average(val, name):
    return hvd.allreduce(torch.tensor(val), name=name).item()


for epoch in range(args.epochs):
    model.train()
    train_sampler.set_epoch(epoch)
    total = 0.0
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item() / len(train_loader)
    total = metric_average(total, "avg_loss")
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {total:.6f}", flush=True)
