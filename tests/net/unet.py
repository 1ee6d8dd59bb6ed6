"""Writes unet.pt2, a U-Net that predicts how a field of 32 x 32 points changes. docs/library.md contains this file."""
import torch
from torch import nn
from torch.nn import functional as F


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
                         nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2, self.bottom = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up2, self.join2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), block(4 * width, 2 * width)
        self.up1, self.join1 = nn.ConvTranspose2d(2 * width, width, 2, 2), block(2 * width, width)
        self.change = nn.Conv2d(width, 1, 1)

    def forward(self, field):
        a = self.down1(field)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([b, self.up2(c)], 1))
        a = self.join1(torch.cat([a, self.up1(b)], 1))
        return field + self.change(a)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.export.save(torch.export.export(UNet(), (torch.zeros(2, 1, 32, 32),)), "unet.pt2")
