#include "sftrun/model/pass_graphs.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/spec/graph_limit.h"

namespace sftrun::model {
namespace {

/// Each graph costs host memory and capture time.
constexpr int64_t kMaxGraphs = 32;
constexpr size_t kMaxOfAnError = 200;  // characters

/// Why no pass of this model can be captured; empty if it can.
std::string why_not(Decoder& decoder, const PassGraphs::Options& options) {
  const DecoderOptions& of_decoder = decoder.options();
  if (of_decoder.backend != nullptr && of_decoder.backend != &layers::fused_backend())
    return "tuning.backend is not fused";
  if (decoder.batch_target().cuts_chunks)
    return "this model's delta nets cut documents by their lengths";
  if (options.needs_two_passes) return "the objective runs the head twice";
  if (options.has_teacher) return "micro-batches have what a teacher says of their labels";
  if (options.has_aux_loss) return "the routers' auxiliary loss counts every token";
  if (options.communicates_in_passes)
    return "the ranks communicate during the passes, as full training on several GPUs does";
  for (const layers::Layer& layer : decoder.layers()) {
    if (!layer.mixer->is_static(of_decoder.dtype))
      return of_decoder.attention == kernels::CudaAttention::kFlash ||
                     of_decoder.attention == kernels::CudaAttention::kAuto
                 ? "attention of so many channels is composed document by document"
                 : "model.attention is cudnn or measure, which choose by the documents' lengths; "
                   "auto and flash allow graphs";
  }
  return "";
}

/// The tensor at the same offset in another copy of the staged bytes.
at::Tensor moved(const at::Tensor& part, const at::Tensor& from, const at::Tensor& to) {
  if (!part.defined()) return part;
  const int64_t first = static_cast<const char*>(part.const_data_ptr()) -
                        static_cast<const char*>(from.const_data_ptr());
  return to.narrow(0, first, static_cast<int64_t>(part.nbytes()))
      .view(part.scalar_type())
      .view(part.sizes());
}

PackedBatch copy_of(const PackedBatch& batch) {
  PackedBatch copy = batch;
  copy.staged = batch.staged.clone();
  layers::BatchContext& context = copy.context;
  for (at::Tensor* part :
       {&copy.tokens, &copy.label_rows, &copy.labels, &copy.grad_factor, &context.cu_seqlens_device,
        &context.token_keys_device, &context.step_device})
    *part = moved(*part, batch.staged, copy.staged);
  for (kernels::RopeAngles& angles : context.ropes)
    angles = {angles.cos.clone(), angles.sin.clone()};
  return copy;
}

void copy_into(PackedBatch& to, const PackedBatch& from) {
  to.staged.copy_(from.staged);
  for (size_t i = 0; i < to.context.ropes.size(); ++i) {
    to.context.ropes[i].cos.copy_(from.context.ropes[i].cos);
    to.context.ropes[i].sin.copy_(from.context.ropes[i].sin);
  }
}

}  // namespace

PassGraphs::PassGraphs(const Stage& stage, const Options& options)
    : decoder_(stage.decoder()), stage_(stage) {
  Decoder& decoder = decoder_;
  if (!decoder.options().device.is_cuda() || options.use == GraphUse::kOff) return;
  const bool is_asked_for = options.use == GraphUse::kAlways;
  const std::string why = why_not(decoder, options);
  if (!why.empty()) {
    log::write(is_asked_for ? log::Level::kWarn : log::Level::kInfo,
               fmt::format("CUDA graphs: off, because {}", why));
    return;
  }
  max_tokens_ = is_asked_for ? std::numeric_limits<int64_t>::max()
                             : spec::tokens_worth_a_graph(
                                   decoder.arch(), decoder.options().trains == Trains::kFull);
  log::info("CUDA graphs: {}", is_asked_for
                                   ? "for all micro-batches"
                                   : fmt::format("for micro-batches of up to {} tokens; the device "
                                                 "is busy with longer ones",
                                                 max_tokens_));
}

PassGraphs::~PassGraphs() {
  clear();
}

/// Waits for running graphs first: LibTorch would return their memory to the driver.
void PassGraphs::clear() {
  if (size() > 0) {
    const at::Device device = decoder_.options().device;
    try {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    } catch (const c10::Error&) {  // the device is lost
    }
  }
  passes_.clear();
}

void PassGraphs::turn_off(const std::string& why) {
  max_tokens_ = 0;
  clear();
  log::warn(
      "CUDA graphs: a capture failed, so they are off for the rest of this run: {}. Training "
      "continues without them, with the same results",
      why);
}

std::optional<BatchSizes> PassGraphs::sizes_for(const data::Batch& batch) const {
  if (batch.num_tokens() == 0 || batch.num_tokens() > max_tokens_) return {};
  if (!batch.rope_positions.empty() || !batch.images.empty() || !batch.features.empty()) return {};
  const BatchSizes sizes = rounded_sizes(batch);
  const auto is_captured = [&](const auto& pass) {
    return pass.first.first == sizes && pass.second.graph != nullptr;
  };
  if (is_full() && std::none_of(passes_.begin(), passes_.end(), is_captured)) return {};
  return sizes;
}

bool PassGraphs::is_full() const {
  return size() == kMaxGraphs;
}

int64_t PassGraphs::size() const {
  return std::count_if(passes_.begin(), passes_.end(),
                       [](const auto& pass) { return pass.second.graph != nullptr; });
}

const kernels::Graph* PassGraphs::any_graph() const {
  for (const auto& [shape, pass] : passes_)
    if (pass.graph) return pass.graph.get();
  return nullptr;
}

std::string PassGraphs::capture(Pass& pass, const PackedBatch& batch) {
  const double started = monotonic_seconds();
  try {
    pass.batch = copy_of(batch);
    pass.loss = at::zeros({}, pass.batch.staged.options().dtype(at::kDouble));
    pass.graph = kernels::capture(decoder_.options().device, any_graph(), [&] {
      pass.loss.copy_(Stage(decoder_).forward_backward(pass.batch, {}));
      decoder_.joints().join_prefetch();
    });
  } catch (const c10::Error& error) {
    decoder_.joints().forget_prefetch();
    const std::string text = error.what_without_backtrace();
    return text.substr(0, std::min<size_t>(text.find('\n'), kMaxOfAnError));
  }
  log::debug("CUDA graphs: captured {} tokens, {} labels, {} documents of up to {} in {:.0f} ms",
             batch.sizes->tokens, batch.sizes->labels, batch.sizes->documents, batch.sizes->longest,
             (monotonic_seconds() - started) * 1000);
  if (is_full())
    log::info(
        "CUDA graphs: {} shapes are captured, which is the limit; others are queued kernel by "
        "kernel",
        kMaxGraphs);
  return "";
}

/// The first pass of each shape is not captured, because it loads kernels and initialises memory.
bool PassGraphs::is_ready(Pass& pass, const PackedBatch& batch) {
  if (pass.graph) return true;
  if (pass.met++ == 0 || is_full()) return false;
  const std::string why = capture(pass, batch);
  if (!why.empty()) turn_off(why);  // `pass` is destroyed
  return why.empty();
}

void PassGraphs::log_use() const {
  if (num_launched_ == 0) return;
  log::info("CUDA graphs: {} captured; {} of {} micro-batches were one launch each",
            counted(size(), "shape"), num_launched_, num_passes_);
}

at::Tensor PassGraphs::forward_backward(const PackedBatch& batch, const PassOptions& options) {
  if (batch.num_tokens() > 0) ++num_passes_;
  if (!batch.sizes || max_tokens_ == 0) return stage_.forward_backward(batch, options);
  SFTRUN_CHECK(options.grad_scale == 1 && options.aux == nullptr &&
               !options.row_factors.defined() && !batch.images && batch.features.empty());
  decoder_.joints().refresh();
  decoder_.joints().join_prefetch();  // work in the graph does not wait for events before the graph
  Pass& pass = passes_[{*batch.sizes, batch.staged.nbytes()}];
  if (!is_ready(pass, batch)) return stage_.forward_backward(batch, options);
  // Both passes are one launch; most of its time is the backward pass's.
  const kernels::WorkRange launching(options.activity, Work::kBackward);
  copy_into(pass.batch, batch);
  pass.graph->launch();
  ++num_launched_;
  if (options.completes_gradients) stage_.report_gradients();
  return pass.loss.clone();
}

at::Tensor PassGraphs::forward_backward(const data::Batch& batch, const Randomness& randomness,
                                        bool is_pinned, PassOptions options) {
  BatchOptions how{.is_pinned = is_pinned, .sizes = sizes_for(batch)};
  if (decoder_.options().device.is_cuda()) how.grad_factor = std::exchange(options.grad_scale, 1);
  return forward_backward(
      prepare_batch(batch, decoder_.rope(), decoder_.batch_target(), randomness, how), options);
}

}  // namespace sftrun::model
