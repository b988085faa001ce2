/* c10's headers include <cuda.h>; everything they mention of it stands in cuda_runtime_api.h beside this. */
#include "cuda_runtime_api.h"
