#pragma once

#include <nccl.h>

#include <vector>

#include "exchange.h"

/// NCCL's operations on bytes of devices, over memory that the ranks share. Each waits for the
/// other ranks; false if one is lost.
namespace stand_in {

bool all_reduce(Exchange& ranks, const void* from, void* to, size_t count, ncclDataType_t type,
                ncclRedOp_t op);
bool reduce(Exchange& ranks, const void* from, void* to, size_t count, ncclDataType_t type,
            ncclRedOp_t op, int root);
bool reduce_scatter(Exchange& ranks, const void* from, void* to, size_t count, ncclDataType_t type,
                    ncclRedOp_t op);
bool all_gather(Exchange& ranks, const void* from, void* to, size_t bytes);
bool all_to_all(Exchange& ranks, const void* from, void* to, size_t bytes);
bool broadcast(Exchange& ranks, const void* from, void* to, size_t bytes, int root);

/// A message under way; to oneself, too.
struct Transfer {
  bool sends = false;
  int peer = 0;
  char* at = nullptr;
  size_t left = 0;
};
/// The bytes of a message, for an `Outbox`.
std::vector<char> bytes_of_message(const Transfer& message);
/// Waits for messages, which `Outbox` sends.
bool receive_all(Exchange& ranks, std::vector<Transfer>& transfers);

}  // namespace stand_in
