"""What the Python package does on this job's ranks, for pytest: alone and under mpirun. PyTorch's own DDP over gloo, in the
same processes, is the reference."""
import os
import tempfile
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import hvtrain as hvt

hvt.init()
RANK, SIZE = hvt.rank(), hvt.size()
torch.set_num_threads(1)
folder = hvt.broadcast_object(tempfile.mkdtemp() if RANK == 0 else None)
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=RANK, world_size=SIZE)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(32, 10))


def batch(step, n=8, side=8):
    """This rank's images and labels."""
    made = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(n, 3, side, side, generator=made), torch.randint(0, 10, (n,), generator=made)


def losses(model, optimizer, steps, none=True, batch=batch):
    seen = []
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad(set_to_none=none)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return np.array(seen)


def same_parameters(a, b, tolerance=1e-6):
    for (name, p), q in zip(a.named_parameters(), b.parameters()):
        assert torch.allclose(p, q, rtol=1e-5, atol=tolerance), name


def on_all_ranks_alike(model):
    for name, p in model.named_parameters():
        assert torch.equal(p.detach(), hvt.broadcast(p, 0)), name


# ---- collectives ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
                                   torch.uint8, torch.int8])
def test_allreduce_of_every_type(dtype):
    x = torch.arange(6).to(dtype).view(2, 3)
    assert torch.equal(hvt.allreduce(x, op=hvt.Sum), x * SIZE)
    assert torch.equal(hvt.allreduce(x), x)  # the average
    assert torch.equal(hvt.allreduce(x + RANK, op=hvt.Max), x + SIZE - 1)
    assert x[1, 2] == 5  # unchanged


def test_allreduce_of_arrays_scales_and_compresses():
    x = np.full(5, 1.5 + RANK)
    total = 1.5 * SIZE + SIZE * (SIZE - 1) / 2
    assert np.allclose(hvt.allreduce(x, op=hvt.Sum, prescale_factor=2.0), 2 * total)
    assert hvt.allreduce(np.float32([1 / 3]), op=hvt.Max, compression=hvt.Compression.fp16)[0] == np.float32(np.float16(1 / 3))
    t = torch.ones(3)
    assert hvt.allreduce_(t, average=False) is t and t[0] == SIZE
    handle = hvt.allreduce_async(torch.ones(2), op=hvt.Sum)
    assert hvt.synchronize(handle)[1] == SIZE and hvt.poll(handle)
    assert [x[0] for x in hvt.grouped_allreduce([torch.ones(1), torch.ones(2)], op=hvt.Sum)] == [SIZE, SIZE]


def test_views_are_reduced_as_they_look():
    x = torch.arange(12.).view(3, 4).t()
    assert torch.equal(hvt.allreduce(x), x)
    hvt.broadcast_(x, 0)
    assert torch.equal(x, torch.arange(12.).view(3, 4).t())


def test_gather_scatter_and_exchange():
    mine = torch.full((RANK + 1, 2), float(RANK))
    rows = hvt.allgather(mine)
    assert rows.shape == (SIZE * (SIZE + 1) // 2, 2) and rows[-1, 0] == SIZE - 1
    assert hvt.broadcast(torch.tensor([RANK]), SIZE - 1)[0] == SIZE - 1
    out, came = hvt.alltoall(torch.arange(SIZE) + 10 * RANK, splits=torch.ones(SIZE, dtype=torch.int64))
    assert out.tolist() == [RANK + 10 * r for r in range(SIZE)] and came.tolist() == [1] * SIZE
    part = hvt.reducescatter(torch.arange(SIZE * 2 + 1.), op=hvt.Sum)
    assert len(part) == 3 if RANK == 0 else 2
    assert part[0] == SIZE * (0 if RANK == 0 else 2 * RANK + 1)
    hvt.barrier()


def test_objects():
    assert hvt.broadcast_object({"rank": RANK}, SIZE - 1) == {"rank": SIZE - 1}
    assert hvt.allgather_object("x" * RANK) == ["x" * r for r in range(SIZE)]


def test_differences_are_errors_on_every_rank():
    if SIZE == 1:
        pytest.skip("one rank")
    with pytest.raises(hvt.HvtError, match="count differs"):
        hvt.allreduce(torch.ones(3 + (RANK == 1)))
    with pytest.raises(hvt.HvtError, match="shapes are"):
        hvt.allgather(torch.ones(2, 3 + (RANK == 1)))
    with pytest.raises(hvt.HvtError, match="complex64"):
        hvt.allreduce(torch.ones(3, dtype=torch.complex64))
    assert hvt.allreduce(torch.ones(1))[0] == 1


# the public names of horovod.torch 0.28
HOROVOD = """Adasum Average Compression DistributedOptimizer Max Min ProcessSet Product Sum SyncBatchNorm add_process_set allgather
allgather_async allgather_object allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast
broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state broadcast_parameters ccl_built cross_rank
cross_size cuda_built ddl_built elastic global_process_set gloo_built gloo_enabled grouped_allgather grouped_allgather_async
grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
grouped_reducescatter_async init is_homogeneous is_initialized join local_rank local_size mpi_built mpi_enabled
mpi_threads_supported nccl_built poll rank reducescatter reducescatter_async remove_process_set rocm_built shutdown size
sparse_allreduce_async start_timeline stop_timeline synchronize""".split()
REFUSED = {"SyncBatchNorm": "sync_bn=True", "add_process_set": r"hvt.init\(comm\)", "remove_process_set": r"hvt.init\(comm\)",
           "elastic": "resume='auto'", "start_timeline": "timeline=FILE", "stop_timeline": "timeline=FILE",
           "sparse_allreduce_async": "to_dense", "mpi_threads_supported": "mpi4py"}


@pytest.mark.parametrize("name", HOROVOD)
def test_horovods_names_are_there_or_refused_with_a_sentence(name):
    import hvtrain.torch as hvd
    found = getattr(hvd, name)
    assert found is getattr(hvt, name)
    if name in REFUSED:
        with pytest.raises(hvt.HvtError, match=f"{name} is not built: .*{REFUSED[name]}"):
            found(torch.ones(1))
        with pytest.raises(hvt.HvtError, match=f"{name} is not built: "):
            found.run
    elif name.endswith(("_built", "_enabled")):
        assert found() is name.startswith("mpi")
    else:
        assert name == name.title() or callable(found) or found.size() == SIZE, found


def adasum(vectors):
    """By the definition of Maleki et al. 2021, in f64."""
    while len(vectors) > 1:
        pairs = [vectors[i:i + 2] for i in range(0, len(vectors), 2)]
        vectors = [(1 - (a * b).sum() / (2 * (a * a).sum())) * a + (1 - (a * b).sum() / (2 * (b * b).sum())) * b
                   for a, b in (p for p in pairs if len(p) == 2)] + [p[0] for p in pairs if len(p) == 1]
    return vectors[0]


@pytest.mark.parametrize("kind", ["f32", "f64", "numpy"])
def test_adasum_of_a_tensor(kind):
    vectors = [np.random.default_rng(r).standard_normal(5000) + 0.5 for r in range(SIZE)]
    x = vectors[RANK] if kind == "numpy" else torch.tensor(vectors[RANK], dtype=torch.float32 if kind == "f32" else torch.float64)
    assert np.abs(np.asarray(hvt.allreduce(x, op=hvt.Adasum)) - adasum(vectors)).max() < (1e-6 if kind == "f32" else 1e-12)
    with pytest.raises(hvt.HvtError, match="adasum of i64, expected f16, bf16, f32 or f64"):
        hvt.allreduce(torch.ones(2, dtype=torch.int64), op=hvt.Adasum)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_adasum_adds_the_updates_of_each_rank(kind):
    """Every rank also makes, alone, the updates of all ranks."""
    def optimizer_of(model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if kind == "sgd" else torch.optim.Adam(model.parameters(), lr=0.01)

    model, each = net(), [net() for _ in range(SIZE)]
    optimizer = hvt.DistributedOptimizer(optimizer_of(model), model.named_parameters(), op=hvt.Adasum)
    alone = [optimizer_of(m) for m in each]
    for step in range(4):
        losses(model, optimizer, 1, batch=lambda _: batch(step))
        before = [p.detach().clone() for p in each[0].parameters()]
        for r, (m, o) in enumerate(zip(each, alone)):
            made = torch.Generator().manual_seed(1000 * step + r)
            x, y = torch.randn(8, 3, 8, 8, generator=made), torch.randint(0, 10, (8,), generator=made)
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
        with torch.no_grad():
            for i, old in enumerate(before):
                changes = [(list(m.parameters())[i] - old).double().numpy() for m in each]
                for m in each:
                    list(m.parameters())[i].copy_(old + torch.from_numpy(adasum(changes)).float())
    same_parameters(model, each[0], 1e-4 if kind == "adam" else 1e-5)
    on_all_ranks_alike(model)
    with pytest.raises(AssertionError, match="not supported when using Adasum"):
        optimizer.skip_synchronize()


def test_groups_and_what_runs_at_once():
    two = [torch.ones(1) * (RANK + 1), torch.ones(2)]
    total = SIZE * (SIZE + 1) / 2
    assert [x.tolist() for x in hvt.synchronize(hvt.grouped_allreduce_async(two, op=hvt.Sum, name="g"))] == [[total], [SIZE] * 2]
    assert hvt.grouped_allreduce_(two, op=hvt.Sum)[0] is two[0] and two[0][0] == total
    assert [len(x) for x in hvt.grouped_allgather([torch.ones(1), torch.ones(2)])] == [SIZE, 2 * SIZE]
    assert len(hvt.grouped_reducescatter([torch.ones(SIZE)], op=hvt.Sum)[0]) == 1
    handle = hvt.allgather_async(torch.tensor([RANK]), name="x")
    assert hvt.poll(handle) and hvt.synchronize(handle).tolist() == list(range(SIZE))
    x = torch.tensor([RANK])
    assert hvt.synchronize(hvt.broadcast_async_(x, 0)) is x and x[0] == 0
    assert hvt.synchronize(hvt.broadcast_async(torch.tensor([RANK]), SIZE - 1))[0] == SIZE - 1
    assert hvt.synchronize(hvt.alltoall_async(torch.arange(SIZE)))[0] == RANK
    assert hvt.synchronize(hvt.reducescatter_async(torch.ones(SIZE), op=hvt.Sum))[0] == SIZE
    assert hvt.broadcast_async.__name__ == "broadcast_async" and hvt.broadcast_async_.__name__ == "broadcast_async_"
    assert hvt.allreduce(torch.ones(1), process_set=hvt.global_process_set)[0] == 1
    assert hvt.cross_rank() < hvt.cross_size() and hvt.is_homogeneous() in (True, False)


# ---- optimizers ----

@pytest.mark.parametrize("kind,none", [("sgd", True), ("sgd", False), ("adam", True)])
def test_an_optimizer_trains_as_ddp(kind, none):
    made = []
    for wrap in (True, False):
        model = net(seed=0 if not wrap else RANK)
        if wrap:
            hvt.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if kind == "sgd"
                     else torch.optim.Adam(model.parameters(), lr=0.01))
        if wrap:
            optimizer = hvt.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
            assert isinstance(optimizer, (torch.optim.SGD, torch.optim.Adam))
            seen = losses(model, optimizer, 6, none)
        else:
            seen = losses(nn.parallel.DistributedDataParallel(model, broadcast_buffers=False), optimizer, 6, none)
        made.append((model, seen))
    (ours, mine), (theirs, wanted) = made
    assert np.abs(mine - wanted).max() < 1e-6, (mine, wanted)
    same_parameters(ours, theirs, 1e-5 if kind == "adam" else 1e-6)
    on_all_ranks_alike(ours)


def test_ddp_trains_a_resnet_as_ddp():
    """On two ranks there is one order of additions; on more, batch norms of few pixels amplify rounding of f32."""
    torchvision = pytest.importorskip("torchvision")
    dtype = torch.float32 if SIZE <= 2 else torch.float64
    seen = []
    for ddp in (hvt.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        torch.manual_seed(3 if ddp is nn.parallel.DistributedDataParallel else 3 + RANK)
        model = ddp(torchvision.models.resnet18(num_classes=10).to(dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        seen.append(losses(model, optimizer, 3, batch=lambda step: [t.to(dtype) if t.is_floating_point() else t for t in batch(step, 4, 32)]))
        assert list(model.state_dict())[0] == "module.conv1.weight"
    assert np.abs(seen[0] - seen[1]).max() < 1e-6, seen


def test_channels_last_and_schedulers():
    model, plain = net().to(memory_format=torch.channels_last), net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvt.DistributedOptimizer(inner, model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    losses(model, optimizer, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    losses(nn.parallel.DistributedDataParallel(plain, broadcast_buffers=False), torch.optim.SGD(plain.parameters(), lr=0.1), 1)
    same_parameters(model, plain, 1e-5)


def test_gradients_in_16_bits():
    for compression in (hvt.Compression.fp16, hvt.Compression.bf16):
        model, plain = net(), net()
        optimizer = hvt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression)
        losses(model, optimizer, 2)
        losses(nn.parallel.DistributedDataParallel(plain, broadcast_buffers=False),
               torch.optim.SGD(plain.parameters(), lr=0.1), 2)
        same_parameters(model, plain, 3e-3)
        assert not torch.equal(model[0].weight, plain[0].weight)
        on_all_ranks_alike(model)


def test_passes_are_summed_before_the_exchange():
    model = nn.Linear(3, 2)
    hvt.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    optimizer = hvt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(),
                                         backward_passes_per_step=2, op=hvt.Sum)
    for _ in range(2):
        model(torch.ones(1, 3) * (RANK + 1)).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, before - SIZE * (SIZE + 1))
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(AssertionError, match="before optimizer.step"):
        optimizer.zero_grad()
    optimizer.step()


def test_gradients_may_be_clipped_between():
    model, plain = net(), net()
    optimizer = hvt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                         gradient_predivide_factor=2.0)
    x, y = batch(0)
    F.cross_entropy(model(x), y).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    ddp = nn.parallel.DistributedDataParallel(plain, broadcast_buffers=False)
    F.cross_entropy(ddp(x), y).backward()
    assert torch.allclose(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.01), rtol=1e-4)
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    same_parameters(model, plain)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x, use):
        return self.a(x) if use else self.b(x)


@pytest.mark.parametrize("ddp", [False, True])
def test_branches_that_a_rank_does_not_use_hang_nobody(ddp):
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if ddp:
        model = hvt.DistributedDataParallel(model)
    else:
        hvt.broadcast_parameters(model.state_dict())
        optimizer = hvt.DistributedOptimizer(optimizer, model.named_parameters())
    inner = model.module if ddp else model
    before = inner.a.weight.detach().clone()
    model(torch.ones(1, 2), RANK == 0).sum().backward()
    optimizer.step()
    assert torch.allclose(inner.a.weight, before - 1 / SIZE)
    on_all_ranks_alike(inner)


def test_no_sync_accumulates():
    model = hvt.DistributedDataParallel(nn.Linear(2, 1, bias=False))
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad[0, 0] == 1
    model(torch.ones(1, 2) * RANK).sum().backward()
    assert torch.allclose(model.module.weight.grad[0, 0], torch.tensor(1 + (SIZE - 1) / 2))


def test_optimizer_state_is_broadcast():
    model = net(RANK)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (RANK + 1))
    losses(model, optimizer, RANK + 1)
    hvt.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    for state in optimizer.state.values():
        assert state["step"] == 1
        assert torch.equal(state["exp_avg"], hvt.broadcast(state["exp_avg"], 0))


def test_wrong_names_are_refused():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="must be unique"):
        hvt.DistributedOptimizer(optimizer, [("a", p) for p in model.parameters()])
    with pytest.raises(ValueError, match="were not named"):
        hvt.DistributedOptimizer(optimizer, list(model.named_parameters())[1:])
    with pytest.raises(hvt.HvtError, match="op is hvt.Max, expected hvt.Average, hvt.Sum or hvt.Adasum"):
        hvt.DistributedOptimizer(optimizer, model.named_parameters(), op=hvt.Max)
    with pytest.raises(hvt.HvtError, match="op is 'adasum', expected hvt.Average, hvt.Sum or hvt.Adasum"):
        hvt.DistributedOptimizer(optimizer, model.named_parameters(), op="adasum")
    with pytest.raises(hvt.HvtError, match="op is 'sum', expected hvt.Average, Sum, Min, Max, Product or Adasum"):
        hvt.allreduce(torch.ones(1), op="sum")
    with pytest.raises(TypeError, match="no argument nonsense, op: gradients are averaged"):
        hvt.DistributedDataParallel(model, op=hvt.Adasum, nonsense=1, find_unused_parameters=True)
    if SIZE > 1:
        with pytest.raises(hvt.HvtError, match="op is hvt.Average on rank 0, but hvt.Adasum on rank 1"):
            hvt.DistributedOptimizer(optimizer, model.named_parameters(), op=hvt.Adasum if RANK else hvt.Average)
        with pytest.raises(hvt.HvtError, match="fused tensor"):
            hvt.DistributedOptimizer(torch.optim.SGD(nn.Linear(2, 2 + RANK).parameters(), lr=0.1))


def test_ranks_without_batches_join():
    hvt._torch._Gradients.living.clear()  # of earlier tests, whose modules may still be referred to
    model = nn.Linear(2, 1, bias=False)
    hvt.broadcast_parameters(model.state_dict())
    before = model.weight.detach().clone()
    optimizer = hvt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(RANK + 1):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert hvt.join() == SIZE - 1
    hvt.broadcast_parameters(model.state_dict(), root_rank=SIZE - 1)
    steps = sum((SIZE - s) / SIZE for s in range(SIZE))  # of each, the mean over all ranks
    assert torch.allclose(model.weight, before - steps)


# ---- nets and runs ----

def whole(n=40, classes=4, side=8):
    """The same set on all ranks: each class has a colour."""
    made = torch.Generator().manual_seed(7)
    labels = torch.arange(n) % classes
    images = torch.randn(n, 3, side, side, generator=made) * 0.3 + labels.view(-1, 1, 1, 1)
    return images.numpy(), labels.numpy()


def test_a_net_learns_from_what_the_ranks_have():
    images, labels = whole()
    part = slice(RANK * 40 // SIZE, (RANK + 1) * 40 // SIZE)
    net = hvt.Net("mlp", (3, 8, 8), 4, lr=0.01, shard=8, optimizer="sgd", momentum=0.9)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    model.load_state_dict({k: torch.from_numpy(v) for k, v in net.state_dict().items()}, strict=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        wide = step % 2 == 0
        mine = net.fit_step(images[part].astype(np.float64) if wide else torch.from_numpy(images[part]),
                            labels[part].astype(np.int8) if wide else labels[part])
        assert abs(mine - loss.item()) < 1e-5, step
    assert np.abs(net.predict(images) - model(torch.from_numpy(images)).detach().numpy()).max() < 1e-4
    last = net.fit_step(images[part].transpose(0, 2, 3, 1), labels[part], epochs=5, layout="NHWC")
    assert last < mine
    assert hvt.allgather_object(net.hash()) == [net.hash()] * SIZE
    hashes = {"net": net.hash()}
    path = os.path.join(folder, "saved")
    net.save(path)
    other = hvt.Net("mlp", (3, 8, 8), 4, lr=0.01, shard=8, optimizer="sgd", momentum=0.9, seed=1)
    other.load(path)
    assert other.hash() == hashes["net"]
    state = net.state_dict()
    assert state["1.weight"].shape == (512, 192)
    with pytest.raises(hvt.HvtError, match="targets are"):
        net.fit_step(images[part], labels[part][:-1])
    with pytest.raises(hvt.HvtError, match=r"images are .* expected .'n', 8, 8, 3."):
        net.predict(images, layout="NHWC")
    with pytest.raises(hvt.HvtError, match="label of image 0 is -1"):
        net.fit_step(images[part], labels[part] * 0 - 1)
    net.close()
    with pytest.raises(hvt.HvtError, match="has been closed"):
        net.predict(images)
    other.close()


class Small(nn.Module):
    def __init__(self, outputs=4):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, outputs)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_a_pt2_file_trains_and_predicts_as_the_model():
    file = os.path.join(folder, "small.pt2")
    model = Small()
    if RANK == 0:
        torch.export.save(torch.export.export(model.train(), (torch.zeros(2, 3, 8, 8),)), file)
    hvt.barrier()
    images, labels = whole()
    net = hvt.Net.from_pt2(file, lr=0.1)
    hvt.broadcast_parameters(model.state_dict())
    wanted = model.eval()(torch.from_numpy(images)).detach().numpy()
    assert np.abs(net.predict(images) - wanted).max() < 1e-5
    net.fit_step(images, labels)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in net.state_dict().items()}, strict=True)
    assert np.abs(net.predict(images) - model(torch.from_numpy(images)).detach().numpy()).max() < 1e-5
    net.close()


def test_a_module_trains_and_reports_its_progress():
    images, labels = whole()
    seen = []
    net = hvt.Net(Small(), (3, 8, 8), lr=0.1, batch=16, shard=8, optimizer="rmsprop", progress=seen.append)
    part = slice(RANK * 40 // SIZE, (RANK + 1) * 40 // SIZE)
    loss = net.fit_step(images[part], labels[part], epochs=2)
    assert [(p.updates, p.epoch, p.images) for p in seen] == [(1, 1, 16), (2, 1, 16), (3, 1, 8), (4, 2, 16), (5, 2, 16), (6, 2, 8)]
    assert abs(sum(p.loss * p.images for p in seen[3:]) / 40 - loss) < 1e-6
    with pytest.raises(hvt.HvtError, match="image_shape is"):
        hvt.Net(Small(), lr=0.1)
    net.close()


class Unexportable(nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 0 else -x


def test_a_module_that_cannot_be_exported_is_every_ranks_error():
    with pytest.raises(Exception) as error:
        hvt.Net(Unexportable(), (3, 8, 8), lr=0.1)
    assert RANK == 0 or "rank 0 could not export the model" in str(error.value)
    assert hvt.allreduce(torch.ones(1))[0] == 1


def build(m, images):
    x = m.relu(m.batchnorm(m.conv2d(images, 8, 3, 1, 1)))
    y = m.apply(m.conv2d_with(x, filters=8, kernel_h=1, bias=True), "gelu", 0, 0)
    x = m.combine("add", x, m.dropout(y, 0.1))
    half = m.maxpool(x, 2, 2, 0)
    both = m.concat([x, m.interpolate(half, "nearest", scale_h=2, scale_w=2), m.conv_transpose2d(half, filters=4, kernel_h=2, stride_h=2)])
    flat = m.flatten(both)
    m.name("head")
    return m.linear(flat, 4)


def test_a_function_builds_a_net():
    images, labels = whole()
    net = hvt.Net(build, (3, 8, 8), 4, lr=0.05, shard=8, momentum=0.9, nesterov=True)
    assert net.state_dict()["head.weight"].shape == (4, 20 * 64)
    first = net.fit_step(images, labels)
    assert net.fit_step(images, labels, epochs=8) < first
    net.close()
    with pytest.raises(ZeroDivisionError):
        hvt.Net(lambda m, images: 1 // 0, (3, 8, 8), 4, lr=0.05)
    with pytest.raises(hvt.HvtError, match="'gelly' is not one of relu"):
        hvt.Net(lambda m, images: m.apply(images, "gelly", 0, 0), (3, 8, 8), 4, lr=0.05)
    with pytest.raises(TypeError, match="takes 5 arguments, got 3"):
        hvt.Net(lambda m, images: m.conv2d(images, 8, 3), (3, 8, 8), 4, lr=0.05)
    with pytest.raises(hvt.HvtError, match="E_"):
        hvt.Net(lambda m, images: m.conv2d(images, 8, 30, 1, 0), (3, 8, 8), 4, lr=0.05)


def test_threads_take_turns():
    if SIZE > 1:
        pytest.skip("the order of calls must be the same on all ranks")
    images, labels = whole()
    net = hvt.Net("mlp", (3, 8, 8), 4, lr=0.01)
    failed = []

    def work():
        try:
            for _ in range(10):
                net.fit_step(images, labels)
                net.predict(images)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    net.close()


def test_optimizers_that_are_gone_hold_no_memory():
    for _ in range(4):
        model = nn.Linear(3, 2)
        hvt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        model = hvt.DistributedDataParallel(model)
        model(torch.ones(1, 3)).sum().backward()
        held = len(hvt._job.job.fuses)
    model = None
    hvt.DistributedDataParallel(nn.Linear(3, 2))
    assert len(hvt._job.job.fuses) <= held


def test_what_progress_raises_arrives():
    images, labels = whole()

    def stop(progress):
        raise KeyboardInterrupt

    net = hvt.Net("mlp", (3, 8, 8), 4, lr=0.01, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        net.fit_step(images, labels)
    net.close()


class Set(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        if self.labels is None:
            raise KeyError("no labels")
        return torch.from_numpy(self.images[i]), self.labels[i]


@pytest.mark.parametrize("kind", ["arrays", "set"])
def test_train_trains_a_module(kind):
    images, labels = whole()
    torch.manual_seed(5)
    model = Small()
    lines = []
    hvt.log_to(lines.append)
    data = (images, labels) if kind == "arrays" else Set(images, labels)
    report = hvt.train(model, data, data, epochs=6, batch=4, lr=0.05, momentum=0.9, seed=1, threads=1)
    hvt.log_to(None)
    assert report.updates == 6 * -(-40 // (4 * SIZE)) and report.epochs == 6
    model.eval()
    logits = model(torch.from_numpy(images))
    assert abs(F.cross_entropy(logits, torch.from_numpy(labels)).item() - report.loss) < 1e-4
    assert abs(100 * (logits.argmax(1).numpy() == labels).mean() - report.top1) < 1e-4
    assert report.top1 > 60
    assert (len(lines) > 5) == (RANK == 0), lines
    on_all_ranks_alike(model)


def test_train_takes_targets_and_bytes():
    images, labels = whole()
    pixels = (images * 40 + 60).clip(0, 255).astype(np.uint8)
    targets = np.stack([labels, -labels], 1).astype(np.float32)
    report = hvt.train(Small(2), (pixels, targets), epochs=5, batch=4, lr=0.02, loss="mse", quiet=True, threads=1)
    assert report.top1 is None and report.loss < 2


def test_train_says_what_is_wrong():
    images, labels = whole()
    with pytest.raises(hvt.HvtError, match="unknown option epoch"):
        hvt.train(Small(), (images, labels), epoch=5, quiet=True)
    with pytest.raises(hvt.HvtError, match="images are .* and labels"):
        hvt.train(Small(), (images, labels[:5]), quiet=True)
    with pytest.raises(KeyError):
        hvt.train(Small(), Set(images, None), quiet=True)
