"""What a program may do wrong, for pytest on one rank or more: every message is in the words of Python, without names of C
functions, constants, fields or pointers. A mistake of the last rank in a call of all is an error on every rank."""
import re

import numpy as np
import pytest
import torch
import torch.nn as nn

import hvtrain as hvt

hvt.init()
RANK, SIZE = hvt.rank(), hvt.size()
LAST = RANK == SIZE - 1
OF_C = re.compile(r"\bhvt_|\bHVT_|\bNULL\b|\bnullptr\b|\b0x[0-9a-f]{4}|\btarget_type\b|\bopts\b|\binfo\.|\w->\w|\bcalloc\b|\bmalloc\b|"
                  r"\bret_\w+|struct |\(\w*\.c:\d+\)|(?<!\w)--[a-z]")
IMAGES, LABELS = np.zeros((8, 3, 8, 8), np.float32), np.zeros(8, np.int64)
NUMBERS = np.zeros((8, 4), np.float32)


def linear():
    return nn.Linear(2, 1)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def net(**options):
    return hvt.Net("mlp", (3, 8, 8), 4, **{"lr": 0.1, **options})


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))


def fit(images=IMAGES, labels=LABELS, options={}, **more):
    """A call with these arguments on the last rank, and right ones on the others."""
    with_net = net(**options)
    try:
        if LAST:
            with_net.fit_step(images, labels, **more)
        else:
            with_net.fit_step(IMAGES, LABELS if options.get("loss", "ce") in ("ce", "bce") else NUMBERS)
    finally:
        with_net.close()


def use(call, **options):
    with_net = net(**options)
    try:
        call(with_net)
    finally:
        with_net.close()


def built(build):
    return lambda: hvt.Net(build, (3, 8, 8), 4, lr=0.1)


def joined_in_a_step():
    hvt._torch._Gradients.living.clear()
    model = linear()
    optimizer = hvt.DistributedOptimizer(sgd(model), model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    try:
        hvt.join()
    finally:
        optimizer.step()


def train(*data, **options):
    return hvt.train(small(), *(data or ((IMAGES, LABELS),)), **{"quiet": True, "epochs": 1, **options})


EACH = {  # the same mistake on every rank: (call, the message)
    "op of allreduce": (lambda: hvt.allreduce(torch.ones(1), op=9), "op is 9, expected hvt.Average, Sum"),
    "type of allreduce": (lambda: hvt.allreduce(torch.ones(1, dtype=torch.complex64), name="z"), "complex64"),
    "sparse": (lambda: hvt.allreduce(torch.ones(2, 2).to_sparse()), "the tensor is sparse"),
    "root_rank": (lambda: hvt.broadcast(torch.ones(1), SIZE, name="x"), f"'x': .*root {SIZE} is not one of {SIZE} ranks"),
    "root_rank of an object": (lambda: hvt.broadcast_object(1, root_rank=-1), "root -1 is not one of"),
    "splits": (lambda: hvt.alltoall(torch.ones(3), splits=[5] * SIZE), "splits are"),
    "process_set": (lambda: hvt.allreduce(torch.ones(1), process_set=3), "process_set"),
    "op of an optimizer": (lambda: hvt.DistributedOptimizer(sgd(linear()), op=hvt.Max), "expected hvt.Average, hvt.Sum or hvt.Adasum"),
    "twice a name": (lambda: hvt.DistributedOptimizer(sgd(linear()), [("a", p) for p in linear().parameters()]), "must be unique"),
    "join in a step": (joined_in_a_step, r"call step\(\) before join\(\)"),
    "devices of DDP": (lambda: hvt.DistributedDataParallel(linear(), device_ids=[0]), "device_ids is"),
    "model": (lambda: hvt.Net("resnet21", (3, 8, 8), 4, lr=0.1), "resnet21"),
    "file": (lambda: hvt.Net.from_pt2("nothing.pt2", lr=0.1), "nothing.pt2"),
    "image_shape": (lambda: hvt.Net("mlp", lr=0.1), r"image_shape is \(0, 0, 0\)"),
    "outputs": (lambda: hvt.Net("mlp", (3, 8, 8), lr=0.1), "0 outputs"),
    "shape of a module": (lambda: hvt.Net(small(), lr=0.1), "image_shape is"),
    "lr": (lambda: net(lr=0), "lr is 0"),
    "loss": (lambda: net(loss="l1"), "loss is 'l1'"),
    "label_smoothing": (lambda: net(label_smoothing=2), "smoothing"),
    "optimizer": (lambda: net(optimizer="lion"), "optimizer is 'lion'"),
    "betas": (lambda: net(optimizer="adam", betas=(0, 0), eps=0), "adam needs betas"),
    "beta": (lambda: net(optimizer="adam", betas=(0.9, 1)), r"betas\[1\] is 1"),
    "momentum of adam": (lambda: net(optimizer="adam", momentum=0.9), "momentum"),
    "nesterov": (lambda: net(nesterov=True), "nesterov needs momentum"),
    "weight_decay": (lambda: net(weight_decay=-1), "weight decay is -1"),
    "compute": (lambda: net(compute="f8"), "compute is 'f8'"),
    "shard": (lambda: net(shard=-1), "shard is -1"),
    "batch": (lambda: net(batch=-1), "batch is -1"),
    "devices": (lambda: net(devices=-1), "-1 devices"),
    "split_at": (lambda: net(devices=2, split_at="nowhere"), "nowhere"),
    "set_lr": (lambda: use(lambda n: n.set_lr(float("nan"))), "lr is nan"),
    "images of predict": (lambda: use(lambda n: n.predict(IMAGES[:, :2])), r"expected \('n', 3, 8, 8\)"),
    "type of predict": (lambda: use(lambda n: n.predict(IMAGES.astype(np.int64))), "images are i64"),
    "folder of save": (lambda: use(lambda n: n.save("nowhere/below/net")), "nowhere/below"),
    "name of save": (lambda: use(lambda n: n.save("")), "an empty one"),
    "load": (lambda: use(lambda n: n.load("nothing")), "nothing"),
    "after close": (lambda: use(lambda n: (n.close(), n.fit_step(IMAGES, LABELS))), "has been closed"),
    "epochs": (lambda: use(lambda n: n.fit_step(IMAGES, LABELS, epochs=0)), "0 epochs"),
    "word of a layer": (built(lambda m, x: m.apply(x, "gelly", 0, 0)), "'gelly' is not one of relu"),
    "count of a layer's arguments": (built(lambda m, x: m.conv2d(x, 8)), "takes 5 arguments"),
    "size of a layer": (built(lambda m, x: m.conv2d(x, 8, 30, 1, 0)), "30"),
    "a linear layer on an image": (built(lambda m, x: m.linear(x, 4)), "average pooling"),
    "a flattened value": (built(lambda m, x: m.relu(m.batchnorm(m.flatten(x)))), ""),
    "shapes of a sum": (built(lambda m, x: m.add(x, m.maxpool(x, 2, 2, 0))), ""),
    "an unknown value": (built(lambda m, x: m.relu(99)), ""),
    "what a function returns": (built(lambda m, x: 99), ""),
    "option of train": (lambda: train(epoch=1), "unknown option epoch"),
    "value of an option": (lambda: train(lr="fast"), "lr"),
    "two options": (lambda: train(batch=4, last_batch="never"), "last_batch"),
    "loss of labels": (lambda: train(loss="mse"), ""),
    "loss of targets": (lambda: train((IMAGES, NUMBERS)), ""),
    "labels of train": (lambda: train((IMAGES, LABELS + 4)), "4"),
    "negative labels": (lambda: train((IMAGES, LABELS - 1)), "-1"),
    "counts of train": (lambda: train((IMAGES, LABELS[:3])), "images are .* and labels"),
    "rows of images": (lambda: train((IMAGES[0], LABELS)), "images are"),
    "folder of train": (lambda: hvt.train(small(), "nowhere", quiet=True, size=8), "nowhere"),
    "val of a folder": (lambda: hvt.train(small(), "nowhere", (IMAGES, LABELS)), "omit val"),
    "resume": (lambda: train(resume="nowhere"), "nowhere"),
    "outputs of train": (lambda: train(outputs=7), "7"),
    "an empty set": (lambda: train((IMAGES[:0], LABELS[:0])), "no images"),
}
ONE = {  # a mistake of the last rank
    "channels": (lambda: fit(IMAGES[:, :2]), r"images are \(8, 2, 8, 8\), expected \('n', 3, 8, 8\)"),
    "layout": (lambda: fit(layout="CHWN"), "layout is 'CHWN'"),
    "no array": (lambda: fit(None), ""),
    "type of images": (lambda: fit(IMAGES.astype(np.int64)), "images are i64"),
    "labels that are numbers": (lambda: fit(labels=LABELS.astype(np.float32)), "numbers are targets of loss mse or mae"),
    "numbers that are labels": (lambda: fit(labels=np.zeros((8, 4), np.int64), options={"loss": "mse"}), "targets are i64"),
    "count of labels": (lambda: fit(labels=LABELS[:3]), r"targets are \(3,\), expected \(8,\)"),
    "label": (lambda: fit(labels=LABELS + 4), "label of image 0 is 4, expected 0 to 3"),
    "a number": (lambda: fit(labels=NUMBERS + np.inf, options={"loss": "mse"}), "inf"),
}
MANY = {  # ranks that differ
    "counts": (lambda: hvt.allreduce(torch.ones(1 + LAST), name="sum of losses"), "'sum of losses': .*count differs"),
    "calls": (lambda: hvt.allreduce(torch.ones(1), name="a") if LAST else hvt.broadcast(torch.ones(1), 0, name="b"), "broadcast"),
    "shapes": (lambda: hvt.allgather(torch.ones(2, 1 + LAST), name="rows"), "shapes are"),
    "types": (lambda: hvt.allreduce(torch.ones(1, dtype=torch.float64 if LAST else torch.float32), name="x"), "type differs"),
    "tensors of optimizers": (lambda: hvt.DistributedOptimizer(sgd(nn.Linear(2, 2 + LAST))), "tensor"),
    "options of nets": (lambda: net(lr=0.1 + LAST), "lr"),
    "calls of a net": (lambda: use(lambda n: n.save("net") if LAST else n.fit_step(IMAGES, LABELS)), "rank 0 trains the net, but rank"),
    "layouts": (lambda: use(lambda n: n.fit_step(np.zeros((4, 8, 8, 3), np.float32), LABELS[:4], layout="NHWC") if LAST
                            else n.fit_step(IMAGES, LABELS)), "the layout is NCHW on rank 0 and NHWC on rank"),
    "options of train": (lambda: train(lr=0.1 + LAST), "lr"),
}


def check(call, message, on_every_rank):
    with pytest.raises(Exception) as error:
        call()
    text = str(error.value)
    print(f"{text}")
    assert re.search(message, text), text
    assert not OF_C.search(text), f"of C: {text}"
    assert len(text) > 10 and type(error.value) is not SystemError, text
    if on_every_rank and SIZE > 1:
        assert isinstance(error.value, hvt.HvtError) and error.value.agreed, text
    assert hvt.allreduce(torch.ones(1), op=hvt.Sum)[0] == SIZE  # nobody is left behind


@pytest.mark.parametrize("name", EACH)
def test_a_mistake_is_told_in_python(name):
    check(*EACH[name], False)


@pytest.mark.parametrize("name", ONE)
def test_a_mistake_of_one_rank_is_told_to_all(name):
    check(*ONE[name], True)


@pytest.mark.parametrize("name", MANY)
def test_ranks_that_differ_are_told_in_python(name):
    if SIZE == 1:
        pytest.skip("one rank")
    check(*MANY[name], True)
