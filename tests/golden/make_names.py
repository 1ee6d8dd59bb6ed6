#!/usr/bin/env python3
"""Names and shapes of state_dicts, in their order, for tests/model/test_zoo.c.

num_batches_tracked is left out: it is one number per model here.

    python3 tests/golden/make_names.py > tests/golden/names.txt
"""
import platform

import torch
import torchvision

from make_losses import ResNet20, mlp

MODELS = [
    ("resnet18", 1000, torchvision.models.resnet18()),
    ("resnet50", 1000, torchvision.models.resnet50()),
    ("resnet20", 10, ResNet20()),
    ("resnext50_32x4d", 1000, torchvision.models.resnext50_32x4d()),
    ("mobilenet_v2", 1000, torchvision.models.mobilenet_v2()),
    ("mlp", 10, mlp()),
]

print(f"# By make_names.py: Python {platform.python_version()}, torch {torch.__version__}, "
      f"torchvision {torchvision.__version__}")
for name, classes, model in MODELS:
    print("model", name, classes)
    for key, value in model.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            print(key, *value.shape)
