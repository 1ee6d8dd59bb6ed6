/* npy.h - the header of NumPy's array files. */
#ifndef HVT_DATA_NPY_H
#define HVT_DATA_NPY_H

#include "data/data_impl.h"

enum { HVT__NPY_DIMS = 8, HVT__NPY_HEADER = 4096 /* bytes, at most; NumPy writes 128 */ };

/* The form of an array of plain numbers. */
typedef struct hvt__npy {
    char kind;     /* NumPy's letter: u, i, f, b (bool), c (complex) */
    int size;      /* bytes of a value */
    char type[16]; /* as in the header: "<f4" */
    bool big;      /* values are big-endian */
    bool fortran;  /* Fortran order, with 2 or more dimensions: the first index runs fastest */
    int dims;
    uint64_t shape[HVT__NPY_DIMS];
    size_t header;  /* bytes in front of the data */
    uint64_t bytes; /* of the data */
} hvt__npy;

/* bytes[have]: the first HVT__NPY_HEADER bytes, or the whole file. path is for messages. Errors: E_FORMAT. */
hvt_status hvt__npy_parse(const uint8_t *bytes, size_t have, const char *path, hvt__npy *ret_npy);
/* The header of an open file. Errors: E_IO, E_FORMAT. */
hvt_status hvt__npy_open(const hvt__data_file *f, hvt__npy *ret_npy);
/* Checks that the file is as long as its header says. Errors: E_FORMAT. */
hvt_status hvt__npy_check_size(const hvt__data_file *f, const hvt__npy *npy);

#endif /* HVT_DATA_NPY_H */
