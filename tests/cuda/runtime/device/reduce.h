#pragma once

#include <nccl.h>

#include <cstddef>

namespace stand_in {

size_t bytes_of(ncclDataType_t type);
const char* name_of(ncclDataType_t type);
const char* name_of(ncclRedOp_t op);

/// into = into (op) from, element by element.
void combine(void* into, const void* from, size_t count, ncclDataType_t type, ncclRedOp_t op);
/// Of an average, after the sum.
void divide(void* values, size_t count, ncclDataType_t type, int by);

}  // namespace stand_in
