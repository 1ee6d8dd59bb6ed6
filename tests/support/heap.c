/*
 * heap.c - the heap of a test program: libhvt cannot touch memory outside of its blocks, and unwritten memory
 * is NaN.
 *
 * The program is linked with --wrap, so every allocation of libhvt and of the test itself comes here.
 *
 *   - Fresh memory is filled with words that are NaN in every type, negative and far out of range as an int
 *     or a size, and invalid as a pointer; each is one less than the word before it, so that the difference
 *     of two unwritten ints is not zero either.
 *   - With HEAP_FENCED each block has its own pages between two that cannot be read or written. By turns it
 *     ends where the second begins, or begins where the first ends. The rest on the other side, left by its
 *     alignment, is filled in the same way; if it has changed when a block is freed, the program ends.
 *
 * Prefetches may go anywhere, loads and stores may not.
 *
 * Sanitizers and memcheck have their own, finer guards, so there are none here then. To memcheck and the
 * memory sanitizer a fill would be a write, so there is none either.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define MSAN 1
#else
#define MSAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||     \
    __has_feature(thread_sanitizer) || MSAN
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void __real_free(void *p);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void __wrap_free(void *p);

bool heap_memcheck(void)
{
    static _Atomic int is = -1;

    if (is < 0)
        is = getenv("HVT_TEST_MEMCHECK") != NULL;
    return is;
}

bool heap_is_watched(void)
{
    return SANITIZED || heap_memcheck();
}

/* Unwritten memory, from a multiple of 256 bytes on, twice. */
#define WORD(i)  UINT32_MAX - (i)
#define FOUR(i)  WORD(i), WORD((i) + 1), WORD((i) + 2), WORD((i) + 3)
#define MANY(i)  FOUR(i), FOUR((i) + 4), FOUR((i) + 8), FOUR((i) + 12)
#define PERIOD() MANY(0), MANY(16), MANY(32), MANY(48)
static const uint32_t unwritten[128] = {PERIOD(), PERIOD()};

static const char *unwritten_at(size_t i)
{
    return (const char *)unwritten + i % 256;
}

static void *spoil(void *p, size_t from, size_t bytes)
{
    if (!p || MSAN || heap_memcheck())
        return p;
    for (size_t i = (from + 3) / 4 * 4; i < bytes; i += 256)
        memcpy((char *)p + i, unwritten_at(i), bytes - i < 256 ? bytes - i : 256);
    return p;
}

void heap_spoil(void *p, size_t bytes)
{
#if MSAN
    __msan_poison(p, bytes);
#endif
    spoil(p, 0, bytes);
}

/* ---- blocks between guard pages ---- */

#ifdef HEAP_FENCED
enum { FENCED = 1 };
#else
enum { FENCED = 0 };
#endif

/* The room for all blocks is reserved once; a block's first page describes it and holds its pointer. Released
 * pages are reused. */
#define SPACE ((size_t)32 << 30)
enum { LISTS = 4096, KEPT_PAGES = 512 };

typedef struct block {
    size_t bytes;         /* 0: not in use */
    uint32_t pages, next; /* in the list of free blocks with as many pages, modulo LISTS; 0: the last */
} block;

static struct {
    pthread_mutex_t lock;
    size_t page;
    char *base;
    block *of;     /* [SPACE / page] */
    uint32_t used; /* pages handed out so far; the first one is a guard */
    uint32_t list[LISTS];
    unsigned count;
    bool none; /* the room could not be reserved */
} fence = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool reserve(void)
{
    size_t page = 4096, table = SPACE / page * sizeof *fence.of;
    void *base, *of;

    if (fence.base || fence.none)
        return fence.base;
    base = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    of = mmap(NULL, table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fence.none = base == MAP_FAILED || of == MAP_FAILED;
    if (fence.none) {
        fprintf(stderr, "heap: no room for guard pages; this program runs without them\n");
        return false;
    }
    fence.base = base;
    fence.of = of;
    fence.page = page;
    fence.used = 1;
    return true;
}

static bool is_fenced(const void *p)
{
    return fence.base && (const char *)p >= fence.base && (const char *)p < fence.base + SPACE;
}

static block *block_of(const void *p)
{
    return &fence.of[(size_t)((const char *)p - fence.base) / fence.page];
}

/* The first of `pages` writable pages with a guard on both sides; 0 if none are left. */
static uint32_t take(uint32_t pages)
{
    uint32_t *link = &fence.list[pages % LISTS], first;

    while (*link && fence.of[*link].pages != pages)
        link = &fence.of[*link].next;
    first = *link;
    if (first) {
        *link = fence.of[first].next;
        return first;
    }
    first = fence.used;
    if (pages + 1 > SPACE / fence.page - first ||
        mprotect(fence.base + first * fence.page, pages * fence.page, PROT_READ | PROT_WRITE))
        return 0;
    fence.used += pages + 1;
    return first;
}

static void *fenced(size_t bytes, size_t align)
{
    uint32_t pages, first;
    char *begin = NULL, *p = NULL;

    if (bytes > SPACE / 4)
        return NULL;
    bytes += !bytes;
    pthread_mutex_lock(&fence.lock);
    if (reserve()) {
        pages = (uint32_t)((bytes + fence.page - 1) / fence.page);
        first = take(pages);
        if (first) {
            begin = fence.base + first * fence.page;
            p = fence.count++ % 2 ? begin : begin + (pages * fence.page - bytes) / align * align;
            fence.of[first] = (block){bytes, pages, 0};
        }
    }
    pthread_mutex_unlock(&fence.lock);
    if (p)
        spoil(begin, 0, pages * fence.page);
    return p;
}

static void check_slack(const void *p, const block *b)
{
    const size_t before = (uintptr_t)p % fence.page, end = b->pages * fence.page;
    const char *begin = (const char *)p - before;

    for (size_t i = 0; i < end; i++) {
        if (i == before)
            i += b->bytes;
        if (i < end && begin[i] != *unwritten_at(i)) {
            fprintf(stderr, "heap: something was written %zd bytes from the start of a block of %zu bytes\n",
                    (ssize_t)i - (ssize_t)before, b->bytes);
            abort();
        }
    }
}

static void give_back(void *p)
{
    block *b = block_of(p);
    uint32_t first = (uint32_t)(b - fence.of);

    if (!b->bytes) {
        fprintf(stderr, "heap: %p is freed twice\n", p);
        abort();
    }
    check_slack(p, b);
    if (b->pages > KEPT_PAGES)
        madvise(fence.base + first * fence.page, b->pages * fence.page, MADV_DONTNEED);
    pthread_mutex_lock(&fence.lock);
    b->bytes = 0;
    b->next = fence.list[b->pages % LISTS];
    fence.list[b->pages % LISTS] = first;
    pthread_mutex_unlock(&fence.lock);
}

/* ---- the C library's names ---- */

static bool fences(void)
{
    return FENCED && !heap_is_watched() && !fence.none;
}

void *__wrap_malloc(size_t bytes)
{
    void *p = fences() ? fenced(bytes, 16) : NULL;

    return p ? p : spoil(__real_malloc(bytes), 0, bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    void *p = fences() && n < SPACE && bytes < SPACE ? fenced(n * bytes, 16) : NULL;

    return p ? memset(p, 0, n * bytes) : __real_calloc(n, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    void *p = fences() && align <= 4096 ? fenced(bytes, align) : NULL;

    return p ? p : spoil(__real_aligned_alloc(align, bytes), 0, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    size_t before;
    void *p;

    if (!old)
        return __wrap_malloc(bytes);
    if (!is_fenced(old)) {
        before = malloc_usable_size(old);
        return spoil(__real_realloc(old, bytes), before, bytes);
    }
    before = block_of(old)->bytes;
    p = __wrap_malloc(bytes);
    if (p) {
        memcpy(p, old, before < bytes ? before : bytes);
        give_back(old);
    }
    return p;
}

void __wrap_free(void *p)
{
    if (is_fenced(p))
        give_back(p);
    else
        __real_free(p);
}

void *heap_exactly(size_t bytes)
{
    size_t align = 64;
    void *p;

    bytes += !bytes;
    while (bytes % align)
        align /= 2;
    p = fences() ? fenced(bytes, align) : NULL;
    if (!p)
        p = spoil(align == 64 ? __real_aligned_alloc(align, bytes) : __real_malloc(bytes), 0, bytes);
    if (!p)
        abort();
    return p;
}
