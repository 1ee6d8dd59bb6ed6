#!/bin/sh
# find-cuda.sh NVCC [PREFIX...]: what the CUDA backend needs, as lines of key=value for meson.build.
#
#   version       nvcc's release
#   include       a folder of headers; several lines
#   cudart        libcudart_static.a
#   cublaslt cudnn nccl   the libraries: libX.so, or libX.so.N where only that is installed (Python wheels)
#   missing       why there is no backend, in place of what lacks
#
# The toolkit is nvcc's own word, since nvcc may be a script that calls the real one elsewhere. cuDNN and NCCL
# often lie under prefixes of their own: those named by the caller come first, the system's last.
set -u
nvcc=$1
shift

top=$("$nvcc" --dryrun -x cu -E /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
top=$([ -n "$top" ] && cd "$top" && pwd -P) || {
    echo "missing=$nvcc does not say where its toolkit is"
    exit 0
}
version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
echo "version=$version"

find_file() { # FOLDERS... -- NAMES...: the first of the names in the first folder that has one
    folders=
    while [ "$1" != -- ]; do
        folders="$folders$1
"
        shift
    done
    shift
    printf %s "$folders" | while IFS= read -r folder; do
        for name; do
            if [ -e "$folder/$name" ]; then
                echo "$folder/$name"
                return
            fi
        done
    done
}

target=$top/targets/$(uname -m)-linux
cudart=$(find_file "$target/lib" "$top/lib64" "$top/lib" -- libcudart_static.a)
header=$(find_file "$target/include" "$top/include" -- cuda_runtime_api.h)
[ -n "$cudart" ] || echo "missing=libcudart_static.a is not in $top"
[ -n "$header" ] || echo "missing=cuda_runtime_api.h is not in $top"
echo "cudart=$cudart"
echo "include=${header%/*}"

library() { # KEY NAME MAJOR HEADER PREFIX...
    key=$1 name=$2 major=$3 wanted=$4
    shift 4
    for prefix in "$@" "$top" /usr; do
        file=$(find_file "$prefix/lib64" "$prefix/lib" "$prefix/targets/$(uname -m)-linux/lib" \
            "$prefix/lib/$(uname -m)-linux-gnu" -- "$name.so.$major" "$name.so")
        header=$(find_file "$prefix/include" "$prefix/targets/$(uname -m)-linux/include" -- "$wanted")
        if [ -n "$file" ] && [ -n "$header" ]; then
            echo "$key=$file"
            [ "${header%/*}" = /usr/include ] || echo "include=${header%/*}" # the compiler's own
            return
        fi
    done
    echo "missing=$name.so.$major with $wanted is in none of: $* $top /usr"
}
library cublaslt libcublasLt "${version%%.*}" cublasLt.h "$@"
library cudnn libcudnn 9 cudnn.h "$@"
library nccl libnccl 2 nccl.h "$@"
