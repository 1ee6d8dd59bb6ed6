/*
 * heap.h - the heap of a test program, see heap.c.
 *
 * Included by tests.
 */
#ifndef HVT_HEAP_H
#define HVT_HEAP_H

#include <stdbool.h>
#include <stddef.h>

/* Fresh memory that ends exactly before a page that may not be touched, aligned like its size, 64 bytes at
 * most; every other time it begins exactly after such a page. free() releases it. */
void *heap_exactly(size_t bytes);

/* Makes the contents of p unwritten again. */
void heap_spoil(void *p, size_t bytes);

/* True if memcheck or a sanitizer watches each byte. Then there are no guard pages, and no fill if the
 * watcher knows unwritten memory. */
bool heap_is_watched(void);

/* True if memcheck runs this program (HVT_TEST_MEMCHECK), some forty times slower than the processor. */
bool heap_memcheck(void);

#endif /* HVT_HEAP_H */
