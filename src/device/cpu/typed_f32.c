/* Activations in f32. See typed.h. */
#define TYPE HVT_F32
#define NAME f32
#include "typed.h"
