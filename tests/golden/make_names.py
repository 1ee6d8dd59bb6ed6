#!/usr/bin/env python3
"""Names and shapes of state_dicts, in their order, for tests/model/test_zoo.c.

num_batches_tracked is left out: it is one number per model here.

    python3 tests/golden/make_names.py > tests/golden/names.txt
"""
import platform

import torch
import torchvision

from make_losses import ResNet20

MODELS = [
    ("resnet18", torchvision.models.resnet18()),
    ("resnet50", torchvision.models.resnet50()),
    ("resnet20", ResNet20()),
    ("resnext50_32x4d", torchvision.models.resnext50_32x4d()),
]

print(f"# By make_names.py: Python {platform.python_version()}, torch {torch.__version__}, "
      f"torchvision {torchvision.__version__}")
for name, model in MODELS:
    print("model", name, model.fc.out_features)
    for key, value in model.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            print(key, *value.shape)
