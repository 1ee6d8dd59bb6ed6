/* Loads cuBLASLt, cuDNN and NCCL when a cuda device or comm is opened, not when the program starts. */
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

static int cudnn_version(void)
{
    return (int)hvt__nv.cudnnGetVersion();
}

static int nccl_version(void)
{
    int v = 0;

    return hvt__nv.ncclGetVersion(&v) == ncclSuccess ? v : 0;
}

/* Both write 10000 * major + 100 * minor + patch. */
static struct library {
    const char *built; /* path at build time */
    const entry *entries;
    int (*version)(void); /* NULL: any version with all functions */
    int least;            /* oldest tested version, see docs/gpu.md */
    bool loaded;
} libraries[CUDA_LIBRARIES] = {
    [CUDA_CUBLASLT] = {.built = HVT_LIBCUBLASLT, .entries = cublaslt},
    [CUDA_CUDNN] = {HVT_LIBCUDNN, cudnn, cudnn_version, 91200, false},
    [CUDA_NCCL] = {HVT_LIBNCCL, nccl, nccl_version, 22800, false},
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Never unloaded: their threads may outlive the device. */
static hvt_status load_from(const char *file, const struct library *l)
{
    void *h = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    int version;

    HVT_CHECK(h, E_UNSUPPORTED, "%s", dlerror());
    for (const entry *e = l->entries; e->name; e++) {
        *e->where = dlsym(h, e->name);
        HVT_CHECK(*e->where, E_UNSUPPORTED, "the %s found here has no %s; it is too old or too new", file,
                  e->name);
    }
    version = l->version ? l->version() : l->least;
    HVT_CHECK(version >= l->least, E_UNSUPPORTED,
              "the %s found here is version %d.%d; %d.%d or newer is needed", file, version / 10000,
              version / 100 % 100, l->least / 10000, l->least / 100 % 100);
    return HVT_OK;
}

/* Load by name, so that LD_LIBRARY_PATH and the system's configuration apply; else from the path at build
 * time. */
static hvt_status load(struct library *l)
{
    const char *name = strrchr(l->built, '/') + 1;
    char why[512];

    if (load_from(name, l)) {
        snprintf(why, sizeof why, "%s", hvt_last_error());
        HVT_CHECK(!load_from(l->built, l), E_UNSUPPORTED,
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
