"""hvtrain for Spack. In a clone:

    spack repo add packaging/spack/spack_repo/hvtrain
    spack install hvtrain
"""
from pathlib import Path

from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Hvtrain(MesonPackage):
    """Distributed training of image models on the CPUs of clusters, over MPI: a program, a library for C and Fortran, and
    the same bits on any number of processes."""

    git = Path(__file__).resolve().parents[6].as_uri()  # the clone that this file is in

    license("MIT")

    version("main", branch="main")

    variant("mpi", default=True, description="start-up and gradient exchange over MPI")
    variant("fortran", default=True, when="+mpi", description="the Fortran module hvtrain")
    variant("pt2", default=True, description="models of PyTorch in .pt2 files")
    variant("webp", default=True, description="pictures in WebP")
    variant("tiff", default=True, description="pictures in TIFF")

    depends_on("c", type="build")
    depends_on("fortran", type="build", when="+fortran")
    depends_on("meson@1.0:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("openmpi", when="+mpi")
    depends_on("jansson@2.7:")
    depends_on("libjpeg-turbo@1.5:")
    depends_on("libpng@1.6:")
    depends_on("zlib-api")
    depends_on("libzip", when="+pt2")
    depends_on("libwebp@1:", when="+webp")
    depends_on("libtiff@4.5:", when="+tiff")

    def meson_args(self):
        def feature(name):
            return f"-D{name}={'enabled' if self.spec.satisfies('+' + name) else 'disabled'}"

        # Kernels of all instruction sets: the program chooses when it starts.
        return ["-Dtests=false", "-Disa=all", "-Dgpu=disabled", "-Ddefault_library=both", feature("mpi"),
                feature("fortran"), feature("pt2"), feature("webp"), feature("tiff")]
