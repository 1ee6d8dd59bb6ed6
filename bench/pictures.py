"""pictures.py - a folder of JPEG files as the benches of loaders read it, made of a tar of some."""
import os
import tarfile

SUFFIXES = (".jpg", ".jpeg")


def unpack(tar, folder):
    """The tar's JPEG files, in `folder`: their paths. One without a folder is of the class that its name begins with
    (n01440764_tench.JPEG)."""
    with tarfile.open(tar) as t:
        for member in t:
            if member.isfile() and member.name.lower().endswith(SUFFIXES):
                parent, name = os.path.split(member.name)
                to = folder / (os.path.basename(parent) or name.split("_")[0]) / name
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(t.extractfile(member).read())
    return sorted(p for p in folder.rglob("*") if p.is_file())


def tree(tar, folder, least):
    """`folder`/train/CLASS/... with `least` files or more, links to those of the tar, and one of each of eight classes
    in `folder`/val; what is there stays. The number of training files."""
    files = unpack(tar, folder / "once") if not (folder / "once").exists() else sorted((folder / "once").glob("*/*"))
    copies = -(-least // len(files))
    for n in range(copies):
        for file in files:
            link(file, folder / "train" / file.parent.name / f"{file.stem}-{n}{file.suffix}")
    for file in files[::-(-len(files) // 8)]:
        link(file, folder / "val" / file.parent.name / file.name)
    return copies * len(files)


def link(file, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    if not to.exists():
        os.link(file, to)
