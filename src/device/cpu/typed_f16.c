/* Activations in f16. See typed.h. */
#define TYPE HVT_F16
#define NAME f16
#include "typed.h"
