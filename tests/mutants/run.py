#!/usr/bin/env python3
"""Checks that the tests notice faults: puts one fault at a time into a copy of the last commit, builds it, and runs the tests.

    python3 tests/mutants/run.py [--folder DIR] [NAME ...] >results.md

A mutant is killed by the first test that fails: those of its list first, then all others but the slow ones. One
that every test passes has survived, and the exit code is 1: a test is missing. A mutant whose text is not found in
its file, or that does not build, ends the run: it has to follow the source. Needs a clean tree only in that it looks
at the commit, not at the working tree. Takes minutes for each mutant, and is run by hand, not by .ci/run; RESULTS.md
is what it printed last.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))

MUTANTS = []


def mutant(name, fault, tests, *changes):
    """`changes` are pairs of file and text, replaced by the third; a text must be in its file exactly once."""
    MUTANTS.append((name, fault, tests.split(), changes))


# ---- the divisor ---------------------------------------------------------------------------------------------

mutant("divisor-planned", "gradients are divided by the planned batch, not by the images that came",
       "distopt golden",
       ("src/optim/step.c", "hvt__model_begin_step(d->optim->m, images, lr, inputs)",
        "hvt__model_begin_step(d->optim->m, (int64_t)shards * d->optim->m->batch, lr, inputs)"))
mutant("divisor-of-one-shard", "gradients are divided by the images of the largest shard alone",
       "distopt golden",
       ("src/optim/step.c", "images += shard_counts[i];",
        "images = shard_counts[i] > images ? shard_counts[i] : images;"))
mutant("divisor-off-by-one", "gradients, not the loss, are divided by one image too many",
       "step optim distopt golden",
       ("src/device/step.h", "(float)(1 / (s->images * (double)s->loss_scale))",
        "(float)(1 / ((s->images + 1) * (double)s->loss_scale))"))

# ---- data ----------------------------------------------------------------------------------------------------

mutant("permutation-repeats", "a shuffle overwrites instead of swapping: images are repeated",
       "sampler data",
       ("src/data/sampler.c", "ret_order[i] = ret_order[z];\n        ret_order[z] = t;",
        "ret_order[i] = ret_order[z];\n        (void)t;"))
mutant("training-pads", "training pads uneven shards by repeating images, whatever --last-batch says",
       "golden program",
       ("src/train/loading.c", ".last_batch = set->last_batch,", ".last_batch = HVT_LAST_BATCH_PAD,"))
mutant("evaluation-pads", "an evaluation gives every rank the same number of images",
       "conform-np2 golden program",
       ("src/train/loading.c", "test.last_batch = HVT_LAST_BATCH_KEEP;", "test.last_batch = HVT_LAST_BATCH_PAD;"))
mutant("evaluation-counts-padding", "an evaluation counts the rows of the last batch that hold no image",
       "golden program",
       ("src/train/eval.c", "for (int i = 0; i < b->count; i++)\n        add_row",
        "for (int i = 0; i < b->labels.dim[0]; i++)\n        add_row"))
mutant("rows-transposed", "the pixels of an image in 16 bits or in H,W,N order are written column by column",
       "device_ops data golden",
       ("src/device/cpu/images.c", "size_t pixel = (size_t)p * a->w + first + q;",
        "size_t pixel = (size_t)(first + q) * a->h + p;"))
mutant("rows-of-another-order", "the loader writes rows in N,H,W order and says H,W,N",
       "data golden",
       ("src/data/loader.c", "hvt_augment_args a = {.order = o->order,",
        "hvt_augment_args a = {.order = HVT_ORDER_NHW,"))

# ---- the update ----------------------------------------------------------------------------------------------

mutant("momentum-twice-in-the-formula", "every device multiplies by momentum twice",
       "optim zoo golden",
       ("src/device/formula.h", "return f_fma(k->momentum, v, k->keep * g);",
        "return f_fma(k->momentum * k->momentum, v, k->keep * g);"))
mutant("momentum-twice-in-the-kernel", "the cpu's kernel applies momentum to what has it already",
       "device_ops optim golden",
       ("src/device/cpu/kernels/elementwise_tmpl.c", "step = a->nesterov ? sgd_nesterov(k, step, u) : u;",
        "step = a->nesterov ? sgd_nesterov(k, step, u) : sgd_velocity(k, step, u);"))
mutant("momentum-twice-in-the-replicated-update", "the last bucket of a replicated update is applied twice",
       "distopt-np2 golden",
       ("src/optim/step.c",
        "HVT_TRY(hvt__traced(d->update_path->update(d, b)));",
        "HVT_TRY(hvt__traced(d->update_path->update(d, b)));\n"
        "        if (d->update_path == &hvt__update_replicated && b == d->bucket + d->nbucket - 1)\n"
        "            HVT_TRY(d->update_path->update(d, b));"))
mutant("momentum-twice-in-the-sharded-update", "a slice is updated twice where ranks share parameters",
       "sharded-np2 golden",
       ("src/optim/update_path.c",
        "    d->updating += hvt__running() - start;\n    return s;",
        "    for (int r = 0; r < ranks; r++)\n"
        "        d->g[r] = (const float *)in[r] + first;\n"
        "    if (s == HVT_OK)\n"
        "        s = hvt__optim_span(d->optim, d->g, ranks, bucket + first, bucket + end);\n"
        "    d->updating += hvt__running() - start;\n    return s;"))
mutant("stale-16-bit-copy", "parameters that were broadcast or read leave the 16-bit copy as it was",
       "model precision precision-np2 program",
       ("src/model/model.c", "m->copy_stale = true;", "(void)m->copy_stale;"))
mutant("bf16-masters", "the cpu's update rounds the parameters themselves to 16 bits, not only their copy",
       "device_ops optim precision",
       ("src/device/cpu/kernels/elementwise_tmpl.c", "f_store_as(copy, a->copy, at, step, lanes);",
        "f_store_as(copy, a->copy, at, step, lanes), f_store(w + at, f_load_as(copy, a->copy, at, lanes), lanes);"))

# ---- the exchange --------------------------------------------------------------------------------------------

mutant("bucket-never-sent-replicated", "the last bucket of a replicated update is never sent",
       "distopt-np2 golden",
       ("src/optim/update_path.c", "    if (n)\n        return post_sum",
        "    if (d->nbucket > 1 && b == d->bucket + d->nbucket - 1) {\n"
        "        b->ticket = b[-1].ticket;\n        return HVT_OK;\n    }\n"
        "    if (n)\n        return post_sum"))
mutant("bucket-never-sent-sharded", "the last bucket of a sharded update is never sent",
       "sharded-np2 golden",
       ("src/optim/update_path.c", "    return post_sum(d, b, d->grads + b->first",
        "    if (d->nbucket > 2 && b == d->bucket + d->nbucket - 1) {\n"
        "        b->ticket = b[-1].ticket;\n        return HVT_OK;\n    }\n"
        "    return post_sum(d, b, d->grads + b->first"))
mutant("broadcast-without-parameters", "ranks begin with parameters of their own",
       "distopt-np2 distopt-np3 program",
       ("src/optim/slices.c",
        "    if (!d->params)\n        return hvt_comm_broadcast(d->comm, m->params, bytes, root);",
        "    if (!d->params)\n        return d->update_path == &hvt__update_replicated\n"
        "                   ? hvt_world_barrier(d->world)\n"
        "                   : hvt_comm_broadcast(d->comm, m->params, bytes, root);"))
mutant("broadcast-without-parameters-sharded", "ranks that cannot share them begin with parameters of their own",
       "sharded-np2 sharded-np3 program",
       ("src/optim/slices.c",
        "    if (!d->params)\n        return hvt_comm_broadcast(d->comm, m->params, bytes, root);",
        "    if (!d->params)\n        return d->update_path != &hvt__update_replicated\n"
        "                   ? hvt_world_barrier(d->world)\n"
        "                   : hvt_comm_broadcast(d->comm, m->params, bytes, root);"))
mutant("broadcast-without-momentum", "ranks go on with momentum of their own",
       "distopt-np2 distopt-np3 program",
       ("src/optim/slices.c", "return o->v && !d->v ?", "return false ?"))
mutant("broadcast-without-statistics", "ranks go on with moving statistics of their own",
       "distopt-np2 distopt-np3 program",
       ("src/optim/distopt.c",
        "HVT_TRY(hvt_comm_broadcast(d->comm, m->stats, m->stats_count * sizeof *m->stats, root));",
        "HVT_TRY(hvt_world_barrier(hvt_comm_world(d->comm)));"))

# ---- convolutions ----------------------------------------------------------------------------------------------

mutant("planes-of-some-pixels", "a 1x1 convolution with several filters for each channel, whose pixels are computed as "
       "images, writes as many pixels as there are images", "random_nets conv",
       ("src/device/cpu/conv/depthwise.c", "rows_of_y(op), real * op->rows_per_image, join}", "rows_of_y(op), real, join}"))

# ---- memory that was never written ---------------------------------------------------------------------------

mutant("blocks-never-written", "blocks of a convolution that copies no pixel are read as malloc left them, and "
       "divided by", "nan device_grad step golden device_ops conv",
       ("src/device/cpu/conv/direct_plan.c", "d->block = calloc(out, sizeof *d->block);",
        "d->block = malloc(out * sizeof *d->block);"),
       ("src/device/cpu/conv/gemm_tn.c",
        "    if (!d->slots || !d->pack_y || op->x_image != op->c || images <= 0 ||"
        " (g->alone && g->unit + 1 == g->end))\n        return a;\n", ""),
       ("src/device/cpu/conv/gemm_tn.c", "    if (slice >= slices)\n        return a;",
        "    if (!d->slots || !d->pack_y || op->x_image != op->c || images <= 0 ||\n"
        "        (g->alone && g->unit + 1 == g->end) || slice >= slices)\n        return a;"))

# ---- the run -------------------------------------------------------------------------------------------------

LEFT_OUT = {"slow", "tree", "launch", "bench"}  # suites that look at other things than what is computed


def command(*args, **kwargs):
    return subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


def must(*args, **kwargs):
    p = command(*args, **kwargs)
    if p.returncode:
        sys.exit(f"{' '.join(args)} fails:\n{p.stdout[-3000:]}")
    return p.stdout


def other_tests(build):
    names = []
    for t in json.loads(must("meson", "introspect", "--tests", build)):
        suites = {part for s in t["suite"] for part in s.split(":")[1:]}
        if not suites & LEFT_OUT:
            names.append(t["name"])
    return names


def first_failure(build, names):
    """(test, truths) of the first test that fails; None: they all pass."""
    log = os.path.join(build, "meson-logs/testlog.json")
    if os.path.exists(log):
        os.remove(log)
    command("meson", "test", "-C", build, "--no-rebuild", "--maxfail", "1", *names)
    with open(log) as f:
        results = [json.loads(line) for line in f]
    if not any(r["result"] == "OK" for r in results) and not any(r["result"] != "SKIP" for r in results):
        sys.exit(f"{' '.join(names)}: no test ran")
    for r in results:
        if r["result"] in ("FAIL", "ERROR", "TIMEOUT"):
            truths = sorted(set(re.findall(r"^FAIL (\w+)", r.get("stdout", ""), re.M)))
            how = ", ".join(truths[:2]) + (f" and {len(truths) - 2} more" if len(truths) > 2 else "")
            return r["name"].split(" / ")[-1], how or r["result"].lower()
    return None


def changed(tree, file, text, other):
    """The file's path and what it is to hold."""
    path = os.path.join(tree, file)
    with open(path) as f:
        was = f.read()
    if was.count(text) != 1:
        sys.exit(f"{file} holds this {was.count(text)} times, expected once; the mutant has to follow it:\n{text}")
    return path, was.replace(text, other)


def change(tree, file, text, other):
    path, new = changed(tree, file, text, other)
    with open(path, "w") as f:
        f.write(new)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", help="where the copy is made and built; kept, so that a second run is quicker")
    parser.add_argument("name", nargs="*", help="mutants to try; none: all")
    args = parser.parse_args()
    unknown = set(args.name) - {m[0] for m in MUTANTS}
    if unknown:
        sys.exit(f"no mutant is called {', '.join(sorted(unknown))}")
    folder = args.folder or tempfile.mkdtemp(prefix="hvt-mutants-")
    tree, build = os.path.join(folder, "tree"), os.path.join(folder, "build")
    os.makedirs(tree, exist_ok=True)
    commit = must("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    must("sh", "-c", f"git -C '{ROOT}' archive HEAD | tar -x -C '{tree}'")
    chosen = [m for m in MUTANTS if not args.name or m[0] in args.name]
    for _, _, _, changes in chosen:
        for c in changes:
            changed(tree, *c)
    if not os.path.exists(os.path.join(build, "build.ninja")):
        must("meson", "setup", build, tree, "-Dgpu=disabled")
    must("ninja", "-C", build)
    rest = other_tests(build)
    used = [t for t in rest if any(t in m[2] for m in chosen)]
    failure = first_failure(build, used)
    if failure:
        sys.exit(f"without a fault {failure[0]} fails already ({failure[1]}); nothing can be said")

    print(f"Commit {commit}: `{' '.join(['python3 tests/mutants/run.py'] + args.name)}`\n")
    print("| mutant | fault | killed by | truths that failed | s |\n|---|---|---|---|---|", flush=True)
    survivors = []
    for name, fault, tests, changes in chosen:
        began = time.time()
        was = {}
        for file, _, _ in changes:
            with open(os.path.join(tree, file)) as f:
                was[file] = f.read()
        try:
            for c in changes:
                change(tree, *c)
            must("ninja", "-C", build)
            known = [t for t in tests if t in rest]
            killer = first_failure(build, known) or first_failure(build, [t for t in rest if t not in known])
        finally:
            for file, text in was.items():
                with open(os.path.join(tree, file), "w") as f:
                    f.write(text)
        if not killer:
            survivors.append(name)
        test, truths = killer or ("**nothing**", "")
        print(f"| {name} | {fault} | {test} | {truths} | {time.time() - began:.0f} |", flush=True)
    print(f"\n{len(survivors)} survived." if survivors else "\nAll were killed.")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
