/*
 * header_test.c - compiled, never run: tests/tree/test_headers.sh passes it to a C17 and to a C++17 compiler,
 * once per public header with HVT_HEADER naming it, and once with all of them. A header must stand alone, may
 * be included twice, and its functions must have C linkage in both languages.
 */
#ifndef HVT_HEADER
#define HVT_HEADER "hvt/hvt.h"
#define HVT_ALL
#endif
#include HVT_HEADER
#include HVT_HEADER

typedef int header_test_of_macros; /* C forbids a file without declarations */

#ifdef HVT_ALL
/* One function of each header, so that the test can see in the assembly whether C++ mangled its name. */
typedef void header_test_fn(void);
#ifdef __cplusplus
extern "C"
#endif
    header_test_fn *const header_test_names[];
header_test_fn *const header_test_names[] = {
    (header_test_fn *)hvt_version,      (header_test_fn *)hvt_dtype_size,
    (header_test_fn *)hvt_device_open,  (header_test_fn *)hvt_world_open,
    (header_test_fn *)hvt_dataset_open, (header_test_fn *)hvt_model_plan,
    (header_test_fn *)hvt_optim_create, (header_test_fn *)hvt_distopt_create,
    (header_test_fn *)hvt_evaluate};

/* Statuses are an enum of negative numbers and zero in both languages. */
typedef char header_test_ok_is_zero[HVT_OK == 0 && HVT_E_ARG < 0 ? 1 : -1];
#endif
