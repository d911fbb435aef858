// libcudart: what LibTorch links and no run of the program calls. Without CUDA's headers, which
// declare these with their arguments.
#include "entry.h"

STAND_IN_MISSING(cudaIpcCloseMemHandle)
STAND_IN_MISSING(cudaIpcGetEventHandle)
STAND_IN_MISSING(cudaIpcGetMemHandle)
STAND_IN_MISSING(cudaIpcOpenEventHandle)
STAND_IN_MISSING(cudaIpcOpenMemHandle)
STAND_IN_MISSING(cudaDeviceGetDefaultMemPool)
STAND_IN_MISSING(cudaFreeAsync)
STAND_IN_MISSING(cudaMallocAsync)
STAND_IN_MISSING(cudaMemcpy2DAsync)
STAND_IN_MISSING(cudaMemPoolGetAttribute)
STAND_IN_MISSING(cudaMemPoolSetAccess)
STAND_IN_MISSING(cudaMemPoolSetAttribute)
STAND_IN_MISSING(cudaMemPoolTrimTo)
STAND_IN_MISSING(cudaGraphDebugDotPrint)
STAND_IN_MISSING(cudaGraphNodeGetDependencies)
