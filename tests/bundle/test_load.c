/*
 * Which of several libraries of one name cuda/load.c chooses: test_load FOLDER, under LD_LIBRARY_PATH=FOLDER
 * with a suitable NCCL, a cuDNN that is too old, and a cuBLASLt without functions.
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
    CHECK_OK(hvt__cuda_load(CUDA_NCCL));
    check_from(*(void **)&hvt__nv.ncclAllReduce, folder);
}

/* What LD_LIBRARY_PATH names will not do: `function` comes from the build's library. */
static void check_gives_way(cuda_library which, const char *library, const void *function)
{
    char built[512];

    if (access(library, R_OK))
        SKIP("the library of the build has gone");
    snprintf(built, sizeof built, "%s", library);
    *strrchr(built, '/') = '\0';
    CHECK_OK(hvt__cuda_load(which));
    check_from(*(void *const *)function, built);
}

TEST(a_library_that_lacks_a_function_gives_way_to_the_build_s)
{
    check_gives_way(CUDA_CUBLASLT, HVT_LIBCUBLASLT, &hvt__nv.cublasLtCreate);
}

TEST(a_library_that_is_too_old_gives_way_to_the_build_s)
{
    check_gives_way(CUDA_CUDNN, HVT_LIBCUDNN, &hvt__nv.cudnnCreate);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    folder = argv[1];
    RUN(the_environment_chooses_before_the_build);
    RUN(a_library_that_lacks_a_function_gives_way_to_the_build_s);
    RUN(a_library_that_is_too_old_gives_way_to_the_build_s);
    return check_done();
}
