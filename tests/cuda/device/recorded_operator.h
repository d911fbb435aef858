#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string>
#include <vector>

/// Operators of a captured stream. They keep addresses, sizes and strides, as a graph does, and no
/// tensor: whose memory was released before a replay ends the program.
namespace host_backed {

/// CUDA's kernel asks the card for a number, and waits for it.
bool waits_for_the_card(const std::string& name, std::span<const c10::IValue> arguments);

/// @param arguments, results of the card, as the operator left them
void record_operator(c10::StreamId stream, const c10::OperatorHandle& op,
                     std::vector<c10::IValue> arguments, std::span<const c10::IValue> results);

/// @throws c10::Error where the copy would wait, or pageable memory is a side of it
void record_copy(c10::StreamId stream, const at::Tensor& to, const at::Tensor& from,
                 bool non_blocking);

}  // namespace host_backed
