/*
 * cuBLASLt, cuDNN and NCCL, loaded when a cuda device or comm is opened and not when the program starts.
 */
#include "cuda_impl.h"
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>

cuda_vendors hvt__nv;

typedef struct entry {
    const char *name;
    void **where; /* function pointers have the representation of data pointers, as dlsym assumes */
} entry;

#define ENTRY(name) {#name, (void **)&hvt__nv.name},

static const entry cublaslt[] = {CUBLASLT_CALLS(ENTRY){NULL, NULL}},
                   cudnn[] = {CUDNN_CALLS(ENTRY){NULL, NULL}}, nccl[] = {NCCL_CALLS(ENTRY){NULL, NULL}};

static struct library {
    const char *built; /* path at build time */
    const entry *entries;
    bool loaded;
} libraries[CUDA_LIBRARIES] = {
    [CUDA_CUBLASLT] = {HVT_LIBCUBLASLT, cublaslt, false},
    [CUDA_CUDNN] = {HVT_LIBCUDNN, cudnn, false},
    [CUDA_NCCL] = {HVT_LIBNCCL, nccl, false},
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Never unloaded: their threads may outlive the device. */
static hvt_status load_from(const char *file, const entry *entries)
{
    void *h = dlopen(file, RTLD_NOW | RTLD_LOCAL);

    HVT_CHECK(h, E_UNSUPPORTED, "%s", dlerror());
    for (const entry *e = entries; e->name; e++) {
        *e->where = dlsym(h, e->name);
        HVT_CHECK(*e->where, E_UNSUPPORTED, "the %s found here has no %s; it is too old or too new", file,
                  e->name);
    }
    return HVT_OK;
}

/* By its name, so that LD_LIBRARY_PATH and the system's configuration choose; else the one of the build. */
static hvt_status load(struct library *l)
{
    const char *name = strrchr(l->built, '/') + 1;
    char why[512];

    if (load_from(name, l->entries)) {
        snprintf(why, sizeof why, "%s", hvt_last_error());
        HVT_CHECK(!load_from(l->built, l->entries), E_UNSUPPORTED,
                  "device cuda needs %s, which does not load: %s; neither does that of the build: %s", name,
                  why, hvt_last_error());
    }
    l->loaded = true;
    return HVT_OK;
}

hvt_status hvt__cuda_load(cuda_library which)
{
    hvt_status s;

    pthread_mutex_lock(&lock);
    s = libraries[which].loaded ? HVT_OK : load(&libraries[which]);
    pthread_mutex_unlock(&lock);
    return s;
}
