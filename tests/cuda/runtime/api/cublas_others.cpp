// libcublas: functions that are counted by name. Without cuBLAS's header: of their arguments the
// handle is enough, and in C's calling convention those that follow it may be left unread.
#include "../device/products.h"
#include "cublas_handle.h"
#include "entry.h"

#define STAND_IN_COUNTED(name)                                        \
  STAND_IN_API int name##_counted(void* handle) __asm__(#name);       \
  STAND_IN_API int name##_counted(void* handle) {                     \
    ::stand_in::note_product(#name, ::stand_in::blas(handle).stream); \
    return 0;                                                         \
  }

STAND_IN_COUNTED(cublasDotEx)
STAND_IN_COUNTED(cublasSdot_v2)
STAND_IN_COUNTED(cublasDdot_v2)
STAND_IN_COUNTED(cublasStrsm_v2)
STAND_IN_COUNTED(cublasDtrsm_v2)
STAND_IN_COUNTED(cublasStrsmBatched)
STAND_IN_COUNTED(cublasDtrsmBatched)
STAND_IN_COUNTED(cublasSgetrfBatched)
STAND_IN_COUNTED(cublasDgetrfBatched)
STAND_IN_COUNTED(cublasSgetrsBatched)
STAND_IN_COUNTED(cublasDgetrsBatched)
STAND_IN_COUNTED(cublasSgeqrfBatched)
STAND_IN_COUNTED(cublasDgeqrfBatched)
STAND_IN_COUNTED(cublasSgelsBatched)
STAND_IN_COUNTED(cublasDgelsBatched)
