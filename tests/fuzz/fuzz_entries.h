#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Entry points for fuzzing the readers. Each takes any bytes and returns; a DataError is caught.
/// Any other exception, and any read outside the bytes, is a bug. Returns a sum over the data read,
/// so that no read is optimised away.
namespace sftrun::weights {

uint64_t fuzz_safetensors(std::span<const std::byte> bytes);
uint64_t fuzz_gguf(
    std::span<const std::byte> bytes);  ///< header, arrays, and the first blocks of every tensor
uint64_t fuzz_json(std::span<const std::byte> bytes);

}  // namespace sftrun::weights
