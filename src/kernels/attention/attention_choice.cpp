#include "attention_choice.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "cudnn_attention.h"
#include "sftrun/core/log.h"

namespace sftrun::kernels {

bool flash_runs_backward(int64_t head_dim, int compute_capability) {
  const bool has_little_memory =
      (compute_capability > 80 && compute_capability < 90) || compute_capability >= 120;
  return !has_little_memory || head_dim <= 192 || head_dim > 224;
}

namespace {

constexpr int kRepetitions = 3;

/// Fastest of kRepetitions runs in ms on the device's current stream, after one run that builds
/// plans.
double time_of(at::Device device, const std::function<void()>& work) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  double least = std::numeric_limits<double>::infinity();
  work();
  for (int i = 0; i < kRepetitions; ++i) {
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    least = std::min(least, begin.elapsedTime(end));
  }
  return least;
}

double difference_of(const at::Tensor& result, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kFloat);
  const at::Tensor error = (result.to(at::kFloat) - wide).square().sum();
  return std::sqrt((error / wide.square().sum()).item<double>());
}

/// The largest value; NaN if any is NaN.
double worst_of(std::initializer_list<double> differences) {
  double worst = 0;
  for (const double one : differences) worst = one <= worst ? worst : one;
  return worst;
}

AttentionTrial try_both(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const BatchMetadata& batch, const AttentionShape& shape,
                        const FlashAttention& flash) {
  const at::Tensor d_out = q.contiguous();  // any gradient serves for timing
  AttentionOutput of_flash, of_cudnn;
  AttentionGrads flash_grads, cudnn_grads;
  AttentionTrial trial;
  trial.flash_ms = time_of(q.device(), [&] {
    of_flash = flash.forward(q, k, v, batch, shape);
    flash_grads = flash.backward(d_out, q, k, v, of_flash, batch, shape);
  });
  trial.cudnn_ms = time_of(q.device(), [&] {
    of_cudnn = cudnn_attention_forward(q, k, v, batch, shape);
    cudnn_grads = cudnn_attention_backward(d_out, q, k, v, of_cudnn, batch, shape);
  });
  trial.difference = worst_of({difference_of(of_cudnn.out, of_flash.out),
                               difference_of(cudnn_grads.dq, flash_grads.dq),
                               difference_of(cudnn_grads.dk, flash_grads.dk),
                               difference_of(cudnn_grads.dv, flash_grads.dv)});
  return trial;
}

/// cuDNN's plans assume alignment to 16 bytes; LibTorch's FlashAttention does not.
bool is_aligned(const at::Tensor& x) {
  constexpr int64_t kAlignment = 16;
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0 && x.stride(1) == 1 &&
         x.stride(0) * x.element_size() % kAlignment == 0;
}

std::string words_of(const AttentionClass& shape) {
  return fmt::format("{} x {} tokens, {} query and {} key heads of {} channels, {}",
                     shape.documents, shape.length, shape.num_heads, shape.num_kv_heads,
                     shape.head_dim, c10::toString(shape.dtype));
}

}  // namespace

double max_difference(at::ScalarType dtype) {
  constexpr double kRoundings = 4;  // of scores and results, in both kernels
  return kRoundings * (dtype == at::kBFloat16
                           ? double{std::numeric_limits<c10::BFloat16>::epsilon()}
                           : double{std::numeric_limits<c10::Half>::epsilon()});
}

bool AttentionChoices::takes_cudnn(const AttentionClass& shape,
                                   const std::function<AttentionTrial()>& run_trial) {
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = takes_cudnn_.find(shape);
    if (found != takes_cudnn_.end()) return found->second;
    is_full = shape.setting == CudaAttention::kMeasure && takes_cudnn_.size() >= kMaxMeasured;
    if (is_full && takes_cudnn_.size() == kMaxMeasured)
      log::info("attention: FlashAttention for every further shape ({} were measured)",
                kMaxMeasured);
  }
  // Without the lock: a trial waits for its device, which may wait for another device's thread.
  const bool taken = !is_full && decide(shape, run_trial);
  const std::lock_guard lock(mutex_);
  takes_cudnn_.emplace(shape, taken);
  return taken;
}

namespace {

bool trial_failed(const AttentionClass& shape, const char* why) {
  log::warn("attention, {}: using FlashAttention, because the trial of cuDNN's kernel failed: {}",
            words_of(shape), why);
  return false;
}

}  // namespace

bool AttentionChoices::decide(const AttentionClass& shape,
                              const std::function<AttentionTrial()>& run_trial) {
  AttentionTrial trial;
  try {
    trial = run_trial();
  } catch (const c10::Error& error) {
    return trial_failed(shape, error.what_without_backtrace());
  } catch (const std::runtime_error& error) {  // the error type of cuDNN's frontend
    return trial_failed(shape, error.what());
  }
  const double allowed = max_difference(shape.dtype);
  if (!(trial.difference <= allowed)) {  // or NaN
    log::warn(
        "attention, {}: using FlashAttention, because cuDNN's results differ from it by a relative "
        "{:.1e} (allowed: {:.1e})",
        words_of(shape), trial.difference, allowed);
    return false;
  }
  const bool taken = shape.setting != CudaAttention::kMeasure || trial.cudnn_ms < trial.flash_ms;
  log::info("attention, {}: {} (forward and backward: cuDNN {:.3f} ms, FlashAttention {:.3f} ms)",
            words_of(shape), taken ? "cuDNN" : "FlashAttention", trial.cudnn_ms, trial.flash_ms);
  return taken;
}

void AttentionChoices::refuse(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (refused_.insert(why).second) log::info("attention: cuDNN's kernel cannot be used: {}", why);
}

bool takes_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const BatchMetadata& batch, const AttentionShape& shape,
                 const FlashAttention& flash) {
  if (shape.on_cuda == CudaAttention::kFlash || batch.is_for_graph || q.size(0) == 0) return false;
  static AttentionChoices choices;  // of the process: a device map has several devices
  const EqualDocuments documents = equal_documents(batch.cu_seqlens);
  std::string why = why_not_cudnn(shape, q.scalar_type(), documents, cudnn_card(q.device()));
  if (why.empty() && !(is_aligned(q) && is_aligned(k) && is_aligned(v)))
    why = "operands are not aligned to 16 bytes";
  if (!why.empty()) {
    if (shape.on_cuda != CudaAttention::kAuto) choices.refuse(why);
    return false;
  }
  return choices.takes_cudnn({.setting = shape.on_cuda,
                              .device = q.device().index(),
                              .dtype = q.scalar_type(),
                              .documents = documents.count,
                              .length = documents.length,
                              .num_heads = shape.num_heads,
                              .num_kv_heads = shape.num_kv_heads,
                              .head_dim = shape.head_dim,
                              .row_strides = {q.stride(0), k.stride(0), v.stride(0)}},
                             [&] { return try_both(q, k, v, batch, shape, flash); });
}

}  // namespace sftrun::kernels
