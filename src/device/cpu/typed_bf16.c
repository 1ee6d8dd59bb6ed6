/* Activations in bf16. See typed.h. */
#define TYPE HVT_BF16
#define NAME bf16
#include "typed.h"
