// libnccl: what LibTorch links and no run of the program calls.
#include "entry.h"

STAND_IN_MISSING(ncclCommDeregister)
STAND_IN_MISSING(ncclCommInitAll)
STAND_IN_MISSING(ncclCommRegister)
STAND_IN_MISSING(ncclCommShrink)
STAND_IN_MISSING(ncclCommSplit)
STAND_IN_MISSING(ncclCommWindowDeregister)
STAND_IN_MISSING(ncclCommWindowRegister)
STAND_IN_MISSING(ncclDevCommCreate)
STAND_IN_MISSING(ncclDevCommDestroy)
STAND_IN_MISSING(ncclGroupSimulateEnd)
STAND_IN_MISSING(ncclRedOpCreatePreMulSum)
STAND_IN_MISSING(ncclRedOpDestroy)
