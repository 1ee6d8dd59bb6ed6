/*
 * Which of several libraries of one name cuda/load.c takes: test_load FOLDER, under LD_LIBRARY_PATH=FOLDER,
 * where a cuBLASLt and an NCCL are that have all functions, and a cuDNN that has none. They are not called.
 */
#define _GNU_SOURCE /* dladdr */
#include "check.h"

#include "../../cuda/cuda_impl.h"
#include "config.h"

#include <dlfcn.h>
#include <unistd.h>

static const char *folder;

/* The folder of the library that has `function` is `want`. */
static void check_from(void *function, const char *want)
{
    Dl_info from;
    const char *slash;

    CHECK(dladdr(function, &from) && from.dli_fname, "%p is in no library", function);
    slash = strrchr(from.dli_fname, '/');
    CHECK(slash && (size_t)(slash - from.dli_fname) == strlen(want) &&
              !strncmp(from.dli_fname, want, strlen(want)),
          "it came from %s, not from %s", from.dli_fname, want);
}

TEST(the_environment_chooses_before_the_build)
{
    CHECK_OK(hvt__cuda_load(CUDA_CUBLASLT));
    check_from(*(void **)&hvt__nv.cublasLtCreate, folder);
    CHECK_OK(hvt__cuda_load(CUDA_NCCL));
    check_from(*(void **)&hvt__nv.ncclAllReduce, folder);
}

TEST(a_library_that_lacks_a_function_gives_way_to_the_build_s)
{
    char built[] = HVT_LIBCUDNN;

    if (access(HVT_LIBCUDNN, R_OK))
        SKIP("the cuDNN of the build has gone");
    *strrchr(built, '/') = '\0';
    CHECK_OK(hvt__cuda_load(CUDA_CUDNN));
    check_from(*(void **)&hvt__nv.cudnnCreate, built);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    folder = argv[1];
    RUN(the_environment_chooses_before_the_build);
    RUN(a_library_that_lacks_a_function_gives_way_to_the_build_s);
    return check_done();
}
