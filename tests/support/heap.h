/*
 * heap.h - the heap of a test program, see heap.c.
 *
 * Included by tests.
 */
#ifndef HVT_HEAP_H
#define HVT_HEAP_H

#include <stdbool.h>
#include <stddef.h>

/* Fresh memory that ends exactly where the next byte may not be touched, aligned as its size is, 64 bytes at
 * most; every other time it begins exactly where a page does, and the byte before may not be touched. free()
 * takes it back. */
void *heap_exactly(size_t bytes);

/* What p holds counts as unwritten again. */
void heap_spoil(void *p, size_t bytes);

/* Something else watches each byte: memcheck or a sanitizer. Then there are no guard pages, and where it
 * tells written memory from unwritten, no fill either. */
bool heap_is_watched(void);

/* Memcheck runs this program (HVT_TEST_MEMCHECK), some forty times slower than the processor. */
bool heap_memcheck(void);

#endif /* HVT_HEAP_H */
