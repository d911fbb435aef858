#pragma once

#include <cstdint>

/// Values of `GgufVocab::token_types`, as llama.cpp numbers them.
namespace sftrun::tokenizer::gguf {

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

}  // namespace sftrun::tokenizer::gguf
