#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/launch.h"
#include "cuda/matrix_views.h"
#include "graph.h"
#include "sftrun/kernels/cuda_registry.h"

// Allocates results and launches kernels on the current stream of the device of x. The engine has
// checked the operands (operands.h). This library depends only on LibTorch and on no symbol of the
// engine, which is loaded with RTLD_LOCAL.
namespace sftrun::kernels {
namespace {

cuda::Type type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return cuda::Type::kFloat32;
    case at::kBFloat16:
      return cuda::Type::kBFloat16;
    case at::kHalf:
      return cuda::Type::kFloat16;
    default:
      TORCH_CHECK(false, "the CUDA kernels have no ", x.scalar_type());
  }
}

/// The current stream of a tensor's device; makes it the current device for its lifetime.
class Launch {
 public:
  explicit Launch(const at::Tensor& x)
      : guard_(x.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}
  cuda::Stream stream() const { return stream_.stream(); }
  void check() const { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

at::Tensor float_rows(const at::Tensor& x) {
  return at::empty({x.size(0)}, x.options().dtype(at::kFloat));
}

/// [rows, columns] with `spare` unused columns after each row.
at::Tensor empty_rows(at::IntArrayRef shape, int64_t spare, const at::TensorOptions& options) {
  return at::empty({shape[0], shape[1] + spare}, options).narrow(1, 0, shape[1]);
}

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset,
                                                   const at::Tensor& copy, int64_t spare) {
  at::Tensor y = empty_rows(x.sizes(), spare, x.options()), rstd = float_rows(x);
  const Launch launch(x);
  cuda::launch_rms_norm_forward(type_of(x),
                                {.x = x.const_data_ptr(),
                                 .weight = weight.const_data_ptr(),
                                 .y = y.data_ptr(),
                                 .copy = copy.defined() ? copy.data_ptr() : nullptr,
                                 .rstd = rstd.data_ptr<float>(),
                                 .rows = x.size(0),
                                 .hidden = x.size(1),
                                 .y_stride = y.stride(0),
                                 .eps = static_cast<float>(eps),
                                 .offset = static_cast<float>(offset)},
                                launch.stream());
  launch.check();
  return {y, rstd};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset,
                             int64_t spare) {
  at::Tensor dx = empty_rows(x.sizes(), spare, x.options());
  const Launch launch(x);
  cuda::launch_rms_norm_backward(
      type_of(x),
      {.dy = dy.const_data_ptr(),
       .x = x.const_data_ptr(),
       .weight = weight.const_data_ptr(),
       .rstd = rstd.const_data_ptr<float>(),
       .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
       .dx = dx.data_ptr(),
       .rows = x.size(0),
       .hidden = x.size(1),
       .dy_stride = dy.stride(0),
       .residual_stride = residual.defined() ? residual.stride(0) : 0,
       .dx_stride = dx.stride(0),
       .offset = static_cast<float>(offset)},
      launch.stream());
  launch.check();
  return dx;
}

cuda::HeadsProblem heads_problem(const std::vector<HeadsInput>& inputs, const RopeAngles* angles,
                                 int64_t head_dim) {
  cuda::HeadsProblem problem{};
  const at::Tensor& x = inputs.front().x;
  problem.tokens = x.size(0);
  problem.head_dim = head_dim;
  if (angles != nullptr) {
    problem.cos = angles->cos.const_data_ptr<float>();
    problem.sin = angles->sin.const_data_ptr<float>();
    problem.rotary_dim = 2 * angles->cos.size(1);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const HeadsInput& input = inputs[i];
    problem.rows[i].x = input.x.const_data_ptr();
    problem.rows[i].weight = input.weight.defined() ? input.weight.const_data_ptr() : nullptr;
    problem.rows[i].heads = input.x.size(1) / head_dim;
    problem.rows[i].x_stride = input.x.stride(0);
    problem.rows[i].eps = static_cast<float>(input.eps);
    problem.rows[i].offset = static_cast<float>(input.offset);
    problem.rows[i].rotates = input.rotates;
  }
  return problem;
}

std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim) {
  cuda::HeadsProblem problem = heads_problem(inputs, angles, head_dim);
  std::vector<HeadsOutput> outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& x = inputs[i].x;
    HeadsOutput output{x, {}};
    if (inputs[i].weight.defined())
      output = {at::empty(x.sizes(), x.options()),
                at::empty({x.numel() / head_dim}, x.options().dtype(at::kFloat))};
    problem.rows[i].y = output.y.data_ptr();
    problem.rows[i].y_stride = output.y.stride(0);
    problem.rows[i].rstd = output.rstd.defined() ? output.rstd.data_ptr<float>() : nullptr;
    outputs.push_back(std::move(output));
  }
  const Launch launch(inputs.front().x);
  cuda::launch_heads_forward(type_of(inputs.front().x), problem, launch.stream());
  launch.check();
  return outputs;
}

std::vector<at::Tensor> heads_backward(const std::vector<HeadsInput>& inputs,
                                       const std::vector<at::Tensor>& grads,
                                       const std::vector<at::Tensor>& rstd,
                                       const RopeAngles* angles, int64_t head_dim,
                                       const std::vector<at::Tensor>& into) {
  cuda::HeadsProblem problem = heads_problem(inputs, angles, head_dim);
  const std::vector<at::Tensor>& results = into.empty() ? grads : into;
  for (size_t i = 0; i < inputs.size(); ++i) {
    problem.rows[i].grad = grads[i].const_data_ptr();
    problem.rows[i].y = results[i].data_ptr();
    problem.rows[i].y_stride = results[i].stride(0);
    problem.rows[i].rstd = inputs[i].weight.defined() ? rstd[i].data_ptr<float>() : nullptr;
  }
  const Launch launch(inputs.front().x);
  cuda::launch_heads_backward(type_of(inputs.front().x), problem, launch.stream());
  launch.check();
  return results;
}

cuda::AttentionProblem attention_problem(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& cu_seqlens,
                                         const AttentionShape& shape) {
  return {.q = q.const_data_ptr(),
          .k = k.const_data_ptr(),
          .v = v.const_data_ptr(),
          .cu_seqlens = cu_seqlens.const_data_ptr<int32_t>(),
          .tokens = q.size(0),
          .documents = cu_seqlens.numel() - 1,
          .heads = shape.num_heads,
          .kv_heads = shape.num_kv_heads,
          .depth = shape.head_dim,
          .q_stride = q.stride(0),
          .k_stride = k.stride(0),
          .v_stride = v.stride(0),
          .window = shape.window,
          .scale = static_cast<float>(shape.scale),
          .softcap = static_cast<float>(shape.softcap)};
}

std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v,
                                                    const at::Tensor& cu_seqlens,
                                                    const AttentionShape& shape) {
  at::Tensor out = at::empty(q.sizes(), q.options()),
             lse = at::empty({shape.num_heads, q.size(0)}, q.options().dtype(at::kFloat));
  const Launch launch(q);
  cuda::launch_attention_forward(type_of(q), attention_problem(q, k, v, cu_seqlens, shape),
                                 out.data_ptr(), lse.data_ptr<float>(), launch.stream());
  launch.check();
  return {out, lse};
}

AttentionGrads attention_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                  const at::Tensor& cu_seqlens, const AttentionShape& shape) {
  AttentionGrads grads{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                       at::empty(v.sizes(), v.options())};
  at::Tensor delta = at::empty(lse.sizes(), lse.options()),
             first_key = at::empty({q.size(0)}, cu_seqlens.options());
  const Launch launch(q);
  cuda::launch_attention_backward(type_of(q), attention_problem(q, k, v, cu_seqlens, shape),
                                  {.d_out = d_out.const_data_ptr(),
                                   .out = out.const_data_ptr(),
                                   .lse = lse.const_data_ptr<float>(),
                                   .delta = delta.data_ptr<float>(),
                                   .first_key = first_key.data_ptr<int32_t>(),
                                   .dq = grads.dq.data_ptr(),
                                   .dk = grads.dk.data_ptr(),
                                   .dv = grads.dv.data_ptr()},
                                  launch.stream());
  launch.check();
  return grads;
}

cuda::GatedShape gated_shape(const at::Tensor& gate, const at::Tensor& h) {
  if (gate.is_contiguous() && h.is_contiguous()) {
    const int64_t n = gate.numel();
    return {1, n, n, n};
  }
  return {gate.size(0), gate.size(1), gate.stride(0), h.stride(0)};
}

at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare) {
  at::Tensor h = spare == 0 ? at::empty(gate.sizes(), gate.options())
                            : empty_rows(gate.sizes(), spare, gate.options());
  const Launch launch(gate);
  cuda::launch_gated_forward(type_of(gate), gating, gate.data_ptr(), up.data_ptr(), h.data_ptr(),
                             gated_shape(gate, h), launch.stream());
  launch.check();
  return h;
}

void gated_backward(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up,
                    bool leaves_activation) {
  const Launch launch(gate);
  cuda::launch_gated_backward(
      type_of(gate), gating, dh.data_ptr(), gate.data_ptr(), up.data_ptr(), gated_shape(gate, dh),
      leaves_activation ? cuda::GatedLeaves::kActivation : cuda::GatedLeaves::kGradient,
      launch.stream());
  launch.check();
}

/// Pointer to the step number on the device.
const uint32_t* step_of(const at::Tensor& step) {
  return static_cast<const uint32_t*>(step.const_data_ptr());
}

at::Tensor dropout(const at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                   const DropoutParams& params) {
  static_assert(sizeof(TokenKey) == 2 * sizeof(int32_t));
  at::Tensor y = at::empty_like(x);
  const Launch launch(x);
  cuda::launch_dropout(type_of(x), x.data_ptr(), y.data_ptr(),
                       static_cast<const TokenKey*>(token_keys.data_ptr()), step_of(step),
                       x.size(0), x.size(1), params, launch.stream());
  launch.check();
  return y;
}

void add_embedding_noise(at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                         const at::Tensor& cu_seqlens, const NoiseParams& params) {
  const Launch launch(x);
  cuda::launch_embedding_noise(
      type_of(x), x.data_ptr(), static_cast<const TokenKey*>(token_keys.const_data_ptr()),
      step_of(step), cu_seqlens.const_data_ptr<int32_t>(), cu_seqlens.numel() - 1, x.size(0),
      x.size(1), params, launch.stream());
  launch.check();
}

at::Tensor launch_losses(const at::Tensor& logits, const at::Tensor& labels, double softcap,
                         const cuda::LossGradient& gradient) {
  at::Tensor losses = float_rows(logits);
  const Launch launch(logits);
  cuda::launch_cross_entropy(type_of(logits), logits.data_ptr(), labels.data_ptr<int32_t>(),
                             losses.data_ptr<float>(), logits.size(0), logits.size(1),
                             static_cast<float>(softcap), gradient, launch.stream());
  launch.check();
  return losses;
}

at::Tensor cross_entropy(at::Tensor& logits, const at::Tensor& labels, double softcap,
                         const GradScale& grad_scale) {
  const auto data_of = [](const at::Tensor& factors) {
    return factors.defined() ? factors.const_data_ptr<float>() : nullptr;
  };
  return launch_losses(logits, labels, softcap,
                       {.is_wanted = true,
                        .scale = static_cast<float>(grad_scale.value),
                        .factor = data_of(grad_scale.factor),
                        .row_factors = data_of(grad_scale.row_factors)});
}
at::Tensor cross_entropy_loss(const at::Tensor& logits, const at::Tensor& labels, double softcap) {
  return launch_losses(logits, labels, softcap, {});
}

/// Null if undefined.
const UpdateGate* gate_of(const at::Tensor& gate) {
  return gate.defined() ? static_cast<const UpdateGate*>(gate.const_data_ptr()) : nullptr;
}

void adamw(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
           at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
           const at::Tensor& gate) {
  const bool own_copy = compute.data_ptr() != master.data_ptr();
  void* copy = own_copy ? static_cast<char*>(compute.data_ptr()) +
                              begin * static_cast<int64_t>(compute.element_size())
                        : nullptr;
  const Launch launch(master);
  cuda::launch_adamw(type_of(compute), master.data_ptr<float>() + begin,
                     grad.data_ptr<float>() + begin, exp_avg.data_ptr<float>() + begin,
                     exp_avg_sq.data_ptr<float>() + begin, copy, end - begin, params,
                     launch.stream(), gate_of(gate));
  launch.check();
}

cuda::StateBlocks blocks_of(const BlockwiseMoments& moments, int64_t first, int64_t end) {
  return {{moments.exp_avg.data_ptr<uint8_t>() + first * kStateBlock,
           moments.exp_avg_sq.data_ptr<uint8_t>() + first * kStateBlock,
           moments.exp_avg_absmax.data_ptr<float>() + first,
           moments.exp_avg_sq_absmax.data_ptr<float>() + first},
          moments.block_begin.data_ptr<int64_t>() + first,
          moments.block_numel.data_ptr<int16_t>() + first,
          end - first};
}

StateMap map_of(const DynamicMap& map) {
  return {map.values.data_ptr<float>(), map.codes.data_ptr<uint8_t>(),
          static_cast<const uint16_t*>(map.tree.const_data_ptr())};
}

void adamw_8bit(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                at::Tensor& compute, int64_t first_block, int64_t end_block,
                const AdamW8bitParams& params, const at::Tensor& gate) {
  const bool own_copy = compute.data_ptr() != master.data_ptr();
  const Launch launch(master);
  cuda::launch_adamw_8bit(type_of(compute), master.data_ptr<float>(), grad.data_ptr<float>(),
                          blocks_of(moments, first_block, end_block),
                          own_copy ? compute.data_ptr() : nullptr, map_of(moments.exp_avg_map),
                          map_of(moments.exp_avg_sq_map), params, launch.stream(), gate_of(gate));
  launch.check();
}

void decide_update(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule) {
  const Launch launch(numbers);
  cuda::launch_decide_update({numbers.const_data_ptr<double>(), numbers.size(0), numbers.size(1),
                              rule.num_losses, rule.num_terms, rule.max_norm},
                             static_cast<UpdateGate*>(gate.data_ptr()), launch.stream());
  launch.check();
}

at::Tensor sum_of_squares(const at::Tensor& flat) {
  const int64_t chunks = (flat.numel() + cuda::kSumChunk - 1) / cuda::kSumChunk;
  const auto options = flat.options().dtype(at::kDouble);
  at::Tensor partial = at::empty({chunks}, options), total = at::empty({}, options);
  const Launch launch(flat);
  cuda::launch_sum_of_squares(flat.data_ptr<float>(), flat.numel(), partial.data_ptr<double>(),
                              total.data_ptr<double>(), launch.stream());
  launch.check();
  return total;
}

/// The launches for the matrices of one format.
struct FormatLaunches {
  void (*dequantize)(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                     cuda::Type type, const cuda::ValueRows& to, cudaStream_t stream);
  void (*thin_product)(const cuda::ThinProduct& product, const QuantizedMatrix& w,
                       const cuda::FourBitTables& tables, cudaStream_t stream);
};

constexpr FormatLaunches kFourBits = {
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& tables, cuda::Type type,
           const cuda::ValueRows& to, cudaStream_t stream) {
          cuda::launch_dequantize_4bit(type, cuda::four_bit_view(matrix), tables, to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& tables, cudaStream_t stream) {
          cuda::launch_thin_product(product, cuda::four_bit_view(w), tables, stream);
        }};
constexpr FormatLaunches kEightBits = {
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cudaStream_t stream) {
          cuda::launch_dequantize_8bit(type, cuda::eight_bit_view(matrix), to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cudaStream_t stream) {
          cuda::launch_thin_product(product, cuda::eight_bit_view(w), stream);
        }};
constexpr FormatLaunches kGgml = {
    .dequantize =
        [](const QuantizedMatrix& matrix, const cuda::FourBitTables& /*tables*/, cuda::Type type,
           const cuda::ValueRows& to, cudaStream_t stream) {
          cuda::launch_dequantize_ggml(type, matrix.ggml_type,
                                       matrix.packed.const_data_ptr<uint8_t>(), matrix.rows,
                                       matrix.columns, to, stream);
        },
    .thin_product =
        [](const cuda::ThinProduct& product, const QuantizedMatrix& w,
           const cuda::FourBitTables& /*tables*/, cudaStream_t stream) {
          cuda::launch_thin_product(product, w.ggml_type, w.packed.const_data_ptr<uint8_t>(),
                                    w.rows, w.columns, stream);
        }};

const FormatLaunches& launches_of(QuantFormat format) {
  // In the order of the enumerators.
  static constexpr std::array<FormatLaunches, kQuantFormats.size()> kAll = {
      kFourBits, kFourBits, kEightBits, kEightBits, kGgml};
  return kAll[static_cast<size_t>(format)];
}

void dequantize(const QuantizedMatrix& matrix, const cuda::FourBitTables& tables,
                const at::Tensor& out) {
  const Launch launch(out);
  const cuda::ValueRows to{out.data_ptr(), out.stride(0)};
  launches_of(matrix.format).dequantize(matrix, tables, type_of(out), to, launch.stream());
  launch.check();
}

at::Tensor thin_product(const at::Tensor& x, const QuantizedMatrix& w,
                        const cuda::FourBitTables& tables) {
  at::Tensor y = at::empty({x.size(0), w.rows}, x.options());
  const cuda::ThinProduct product{.type = type_of(x),
                                  .x = x.const_data_ptr(),
                                  .x_stride = x.stride(0),
                                  .tokens = x.size(0),
                                  .y = y.data_ptr()};
  const Launch launch(x);
  launches_of(w.format).thin_product(product, w, tables, launch.stream());
  launch.check();
  return y;
}

void turn_codes(const at::Tensor& from, const at::Tensor& to) {
  const Launch launch(from);
  cuda::launch_turn_codes(from.const_data_ptr<uint8_t>(), to.data_ptr<uint8_t>(), from.size(0),
                          from.size(1), launch.stream());
  launch.check();
}

RoundedRows round_to_e4m3(const at::Tensor& x, const at::Tensor& gains) {
  const at::Tensor rows = x.contiguous();
  RoundedRows rounded{at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)),
                      at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  const Launch launch(rows);
  cuda::launch_round_to_e4m3(
      type_of(rows), rows.data_ptr(), gains.defined() ? gains.const_data_ptr<float>() : nullptr,
      static_cast<uint8_t*>(rounded.codes.data_ptr()), rounded.factors.data_ptr<float>(), x.size(0),
      x.size(1), launch.stream());
  launch.check();
  return rounded;
}

int compute_capability(at::Device device) {
  const auto* card = at::cuda::getDeviceProperties(device.index());
  return card->major * 10 + card->minor;
}

bool multiplies_fp8(const at::Tensor& x) {
  constexpr int kAda = 89;
  return compute_capability(x.device()) >= kAda;
}

/// The condition of at::_grouped_mm (aten/src/ATen/native/cuda/GroupedBlas.cpp); elsewhere it
/// copies `ends` to the host and multiplies one matrix after the other.
bool libtorch_groups(const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16) return false;
  const int major = at::cuda::getDeviceProperties(x.device().index())->major;
  return major == 9 || major == 10;
}

at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& w, bool transposed,
                          const at::Tensor& ends) {
  const cuda::GroupedShape shape{x.size(0), x.size(1), w.size(transposed ? 1 : 2), w.size(0)};
  at::Tensor y = at::empty({shape.rows, shape.columns}, x.options());
  const Launch launch(x);
  cuda::launch_grouped_matmul(type_of(x), x.data_ptr(), w.data_ptr(), ends.data_ptr<int32_t>(),
                              y.data_ptr(), shape, transposed, launch.stream());
  launch.check();
  return y;
}

void add_grouped_matmul_tn(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                           const at::Tensor& ends) {
  const Launch launch(g);
  cuda::launch_grouped_matmul_tn(type_of(g), g.data_ptr(), x.data_ptr(), ends.data_ptr<int32_t>(),
                                 out.data_ptr<float>(),
                                 {g.size(0), g.size(1), x.size(1), out.size(0)}, launch.stream());
  launch.check();
}

const int32_t* indices(const at::Tensor& x) {
  return x.const_data_ptr<int32_t>();
}
/// Null if undefined.
const float* floats(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}
const void* memory(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}

cuda::RouterChoice router_choice(const at::Tensor& logits, const TokenChoice& choice,
                                 bool normalise) {
  return {.tokens = logits.size(0),
          .experts = logits.size(1),
          .top_k = choice.chosen.size(1),
          .normalise = normalise,
          .chosen = choice.chosen.data_ptr<int32_t>(),
          .weights = choice.weights.data_ptr<float>(),
          .scaled = choice.scaled.data_ptr<float>()};
}

TokenChoice route_tokens(const at::Tensor& logits, const at::Tensor& factors, int64_t top_k,
                         bool normalise) {
  TokenChoice choice;
  choice.chosen = at::empty({logits.size(0), top_k}, logits.options().dtype(at::kInt));
  choice.weights = at::empty({logits.size(0), top_k}, logits.options());
  choice.scaled = factors.defined() ? at::empty_like(choice.weights) : choice.weights;
  const Launch launch(logits);
  cuda::launch_route_tokens(router_choice(logits, choice, normalise), floats(logits),
                            floats(factors), launch.stream());
  launch.check();
  return choice;
}

at::Tensor route_tokens_backward(const at::Tensor& logits, const TokenChoice& choice,
                                 const at::Tensor& factors, bool normalise,
                                 const at::Tensor& d_scaled, const at::Tensor& d_probability,
                                 double scale) {
  at::Tensor d_logits = at::empty_like(logits);
  const Launch launch(logits);
  cuda::launch_route_tokens_backward(router_choice(logits, choice, normalise),
                                     {.logits = floats(logits),
                                      .factors = floats(factors),
                                      .d_scaled = floats(d_scaled),
                                      .d_probability = floats(d_probability),
                                      .d_logits = d_logits.data_ptr<float>(),
                                      .scale = static_cast<float>(scale)},
                                     launch.stream());
  launch.check();
  return d_logits;
}

Routes sort_routes(const at::Tensor& chosen, int64_t num_experts) {
  Routes routes;
  routes.slots = at::empty({chosen.numel()}, chosen.options());
  routes.experts = at::empty({chosen.numel()}, chosen.options());
  routes.ends = at::empty({num_experts}, chosen.options());
  routes.rows = at::empty_like(chosen);
  const Launch launch(chosen);
  cuda::launch_sort_routes({.routes = chosen.numel(),
                            .num_experts = num_experts,
                            .ends = routes.ends.data_ptr<int32_t>(),
                            .slots = routes.slots.data_ptr<int32_t>(),
                            .experts = routes.experts.data_ptr<int32_t>(),
                            .rows = routes.rows.data_ptr<int32_t>()},
                           indices(chosen), launch.stream());
  launch.check();
  return routes;
}

cuda::TokenRows token_rows(const at::Tensor& rows, int64_t columns) {
  return {indices(rows), rows.size(0), rows.size(1), columns};
}

at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& rows) {
  at::Tensor y = at::empty({rows.numel(), x.size(1)}, x.options());
  const Launch launch(x);
  cuda::launch_spread_rows(type_of(x), memory(x), y.data_ptr(), token_rows(rows, x.size(1)),
                           launch.stream());
  launch.check();
  return y;
}

at::Tensor sum_rows(const RowSum& sum) {
  at::Tensor y = at::empty({sum.rows.size(0), sum.x.size(1)}, sum.x.options());
  const Launch launch(sum.x);
  cuda::launch_sum_rows(type_of(sum.x),
                        {.x = memory(sum.x),
                         .weights = floats(sum.weights),
                         .residual = memory(sum.residual),
                         .beside = memory(sum.beside),
                         .logits = memory(sum.logits),
                         .y = y.data_ptr()},
                        token_rows(sum.rows, sum.x.size(1)), launch.stream());
  launch.check();
  return y;
}

void add_expert_bias(at::Tensor& y, const at::Tensor& bias, const at::Tensor& experts) {
  const Launch launch(y);
  cuda::launch_add_expert_bias(type_of(y), y.data_ptr(), memory(bias), indices(experts), y.size(0),
                               y.size(1), launch.stream());
  launch.check();
}

void add_expert_sums(at::Tensor& out, const at::Tensor& x, const at::Tensor& weights,
                     const Routes& routes) {
  const Launch launch(x);
  cuda::launch_add_expert_sums(type_of(x),
                               {.x = memory(x),
                                .ends = indices(routes.ends),
                                .weights = floats(weights),
                                .slots = indices(routes.slots),
                                .out = out.data_ptr<float>(),
                                .experts = routes.num_experts(),
                                .columns = x.size(1)},
                               launch.stream());
  launch.check();
}

void add_expert_products(at::Tensor& out, const at::Tensor& products, const at::Tensor& ends) {
  const Launch launch(out);
  cuda::launch_add_expert_products(type_of(products),
                                   {.products = memory(products),
                                    .row_stride = products.stride(1),
                                    .matrix_stride = products.stride(0),
                                    .ends = indices(ends),
                                    .out = out.data_ptr<float>(),
                                    .experts = out.size(0),
                                    .rows = out.size(1),
                                    .columns = out.size(2)},
                                   launch.stream());
  launch.check();
}

WeightedGatedGrads weighted_gated_backward(Gating gating, WeightedGated& gated,
                                           const Routes& routes, bool with_h) {
  WeightedGatedGrads grads;
  grads.d_weights = at::empty_like(gated.weights);
  if (with_h) grads.weighted_h = at::empty_like(gated.dh);
  const Launch launch(gated.dh);
  cuda::launch_weighted_gated_backward(
      type_of(gated.dh), gating,
      {.dh = memory(gated.dh),
       .gate_up = gated.gate_up.data_ptr(),
       .weights = floats(gated.weights),
       .slots = indices(routes.slots),
       .d_weights = grads.d_weights.data_ptr<float>(),
       .weighted_h = with_h ? grads.weighted_h.data_ptr() : nullptr,
       .bias = memory(gated.bias),
       .dy = memory(gated.dy),
       .experts = indices(routes.experts),
       .rows = gated.dh.size(0),
       .inner = gated.dh.size(1),
       .hidden = gated.bias.defined() ? gated.bias.size(1) : 0},
      launch.stream());
  launch.check();
  return grads;
}

GatedAnswerGrads gated_answer_backward(const at::Tensor& dy, const at::Tensor& answer,
                                       const at::Tensor& logits) {
  GatedAnswerGrads grads{at::empty_like(answer), at::empty_like(logits)};
  const Launch launch(dy);
  cuda::launch_gated_answer_backward(type_of(dy),
                                     {.dy = memory(dy),
                                      .answer = memory(answer),
                                      .logits = memory(logits),
                                      .d_answer = grads.d_answer.data_ptr(),
                                      .d_logits = grads.d_logits.data_ptr(),
                                      .tokens = dy.size(0),
                                      .columns = dy.size(1)},
                                     launch.stream());
  launch.check();
  return grads;
}

/// The wide side is `wide`; the side with lora_rank columns is `thin`.
cuda::AdapterGrad adapter_grad(const AdapterGrad& grad) {
  const bool g_is_wide = !grad.norm.rstd.defined() && grad.g.size(1) >= grad.x.size(1);
  const at::Tensor &wide = g_is_wide ? grad.g : grad.x, &thin = g_is_wide ? grad.x : grad.g;
  return {.wide = wide.const_data_ptr(),
          .thin = thin.const_data_ptr(),
          .rstd = grad.norm.rstd.defined() ? grad.norm.rstd.const_data_ptr<float>() : nullptr,
          .weight = grad.norm.rstd.defined() ? grad.norm.weight.const_data_ptr() : nullptr,
          .offset = static_cast<float>(grad.norm.offset),
          .wide_stride = wide.stride(0),
          .wide_columns = wide.size(1),
          .thin_stride = thin.stride(0),
          .rank = thin.size(1),
          .out = grad.out.data_ptr<float>(),
          .wide_step = grad.out.stride(g_is_wide ? 0 : 1),
          .rank_step = grad.out.stride(g_is_wide ? 1 : 0),
          .scale = static_cast<float>(grad.scale)};
}

void add_adapter_grads(const std::vector<AdapterGrad>& grads) {
  const at::Tensor& g = grads.front().g;
  const Launch launch(g);
  for (size_t first = 0; first < grads.size(); first += cuda::kMostAdapterGrads) {
    cuda::AdapterGrads some{};
    some.tokens = g.size(0);
    for (size_t i = first; i < grads.size() && some.count < cuda::kMostAdapterGrads; ++i)
      some.products[some.count++] = adapter_grad(grads[i]);
    cuda::launch_adapter_grads(type_of(g), some, launch.stream());
    launch.check();
  }
}

at::Tensor copy_table(const std::vector<MatrixCopy>& copies) {
  std::vector<cuda::MatrixPlacement> placements;
  for (const MatrixCopy& copy : copies) {
    TORCH_CHECK(copy.from.is_contiguous() && copy.from.sizes() == copy.to.sizes() &&
                copy.to.stride(1) == 1 && copy.from.scalar_type() == copy.to.scalar_type());
    placements.push_back({copy.from.const_data_ptr(), copy.to.data_ptr(), copy.from.size(0),
                          copy.from.size(1), copy.to.stride(0), static_cast<float>(copy.scale)});
  }
  const auto bytes = static_cast<int64_t>(placements.size() * sizeof(cuda::MatrixPlacement));
  return at::from_blob(placements.data(), {bytes}, at::kByte).to(copies.front().to.device());
}

void copy_matrices(const at::Tensor& table, const at::Tensor& like) {
  const Launch launch(table);
  cuda::launch_copy_matrices(
      type_of(like), static_cast<const cuda::MatrixPlacement*>(table.const_data_ptr()),
      table.numel() / static_cast<int64_t>(sizeof(cuda::MatrixPlacement)), launch.stream());
  launch.check();
}

at::Tensor pinned_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  if (bytes == 0) return at::zeros(shape, options);
  constexpr size_t kPage = 4096;  // whole pages: a shared page could not be locked twice
  const size_t whole_pages = (bytes + kPage - 1) / kPage * kPage;
  void* memory = std::aligned_alloc(kPage, whole_pages);
  TORCH_CHECK(memory != nullptr, "no ", whole_pages, " bytes of host memory are left");
  std::memset(memory, 0, whole_pages);
  const c10::cuda::CUDAGuard guard(device);  // the context that registers the memory
  const cudaError_t error = cudaHostRegister(memory, whole_pages, cudaHostRegisterDefault);
  if (error != cudaSuccess) {
    std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc): from aligned_alloc
    TORCH_CHECK(false, "locking ", whole_pages,
                " bytes of host memory for copies to the GPU: ", cudaGetErrorString(error));
  }
  const auto release = [](void* locked) {
    C10_CUDA_CHECK_WARN(cudaHostUnregister(locked));
    std::free(locked);  // NOLINT(cppcoreguidelines-no-malloc)
  };
  return at::from_blob(memory, shape, release, options);
}

std::string card_name(at::Device device) {
  return at::cuda::getDeviceProperties(device.index())->name;
}

std::string card_bus_id(at::Device device) {
  const cudaDeviceProp& card = *at::cuda::getDeviceProperties(device.index());
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%08x:%02x:%02x.0", card.pciDomainID, card.pciBusID,
                card.pciDeviceID);
  return text.data();
}

constexpr CudaKernels kKernels = {
    .rms_norm_forward = rms_norm_forward,
    .rms_norm_backward = rms_norm_backward,
    .heads_forward = heads_forward,
    .heads_backward = heads_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gated_forward = gated_forward,
    .gated_backward = gated_backward,
    .dropout = dropout,
    .add_embedding_noise = add_embedding_noise,
    .cross_entropy = cross_entropy,
    .cross_entropy_loss = cross_entropy_loss,
    .adamw = adamw,
    .adamw_8bit = adamw_8bit,
    .sum_of_squares = sum_of_squares,
    .dequantize = dequantize,
    .thin_product = thin_product,
    .turn_codes = turn_codes,
    .round_to_e4m3 = round_to_e4m3,
    .multiplies_fp8 = multiplies_fp8,
    .libtorch_groups = libtorch_groups,
    .grouped_matmul = grouped_matmul,
    .add_grouped_matmul_tn = add_grouped_matmul_tn,
    .route_tokens = route_tokens,
    .route_tokens_backward = route_tokens_backward,
    .sort_routes = sort_routes,
    .spread_rows = spread_rows,
    .sum_rows = sum_rows,
    .add_expert_bias = add_expert_bias,
    .add_expert_sums = add_expert_sums,
    .add_expert_products = add_expert_products,
    .weighted_gated_backward = weighted_gated_backward,
    .gated_answer_backward = gated_answer_backward,
    .add_adapter_grads = add_adapter_grads,
    .copy_table = copy_table,
    .copy_matrices = copy_matrices,
    .pinned_zeros = pinned_zeros,
    .card_name = card_name,
    .card_bus_id = card_bus_id,
    .compute_capability = compute_capability,
    .decide_update = decide_update,
    .capture = capture_graph,
};

}  // namespace
}  // namespace sftrun::kernels

extern "C" const sftrun::kernels::CudaKernels* sftrun_cuda_kernels() {
  return &sftrun::kernels::kKernels;
}

/// Size of the table above; differs between builds, which the engine checks.
extern "C" size_t sftrun_cuda_kernels_size() {
  return sizeof(sftrun::kernels::CudaKernels);
}

/// CMake's CUDA_ARCHITECTURES of this build.
extern "C" const char* sftrun_cuda_architectures() {
  return SFTRUN_CUDA_ARCHITECTURES;
}
