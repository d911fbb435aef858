#include "sftrun/layers/joint_linears.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/kernels/fp8_product.h"

namespace sftrun::layers {
namespace {

bool can_be_part(const Linear& linear) {
  const bool is_frozen = linear.weight_parameter == nullptr && linear.bias_parameter == nullptr;
  const bool is_plain = !linear.lora || (linear.lora->magnitude == nullptr &&
                                         linear.lora->dropout == 0 && !linear.lora->a->in_fp32);
  // The bias is added once, to the sum of the ranks' products.
  const bool adds_bias_later = linear.sums_outputs() && linear.bias.defined();
  return (linear.quantized || linear.weight.defined()) && is_frozen && is_plain && !adds_bias_later;
}

/// Whether products use the FP8 codes directly.
bool is_in_fp8(const Linear& linear) {
  return linear.quantized && linear.quantized->info().rounds_activations &&
         linear.quantized->absmax.defined();
}

int64_t rank_of(const Linear& linear) {
  return linear.lora ? linear.lora->a->shape[0] : 0;
}

/// Padding ranks to 16 keeps rows of 16-bit elements aligned to 32 bytes.
constexpr int64_t kSpareStep = 16;

int64_t ranks_for(const std::vector<Linear*>& linears) {
  int64_t ranks = 0;
  for (const Linear* linear : linears) ranks += rank_of(*linear);
  return (ranks + kSpareStep - 1) / kSpareStep * kSpareStep;
}

/// Calls body(linear, its first row, first column of its adapter).
template <typename Body>
void for_members(const JointLinears& joint, Body&& body) {
  int64_t row = 0, column = 0;
  for (const Linear* linear : joint.members) {
    body(*linear, row, column);
    row += linear->matrix().size(0);
    column += rank_of(*linear);
  }
}

at::TensorOptions adapter_options(const std::vector<Linear*>& linears) {
  for (const Linear* linear : linears)
    if (linear->lora) return linear->lora->a->compute.options();
  SFTRUN_CHECK(false);
}

/// At most so many tiles of kGradTileColumns columns do the gradients of the adapters have.
int64_t max_grad_tiles(const JointLinears& joint) {
  int64_t tiles = 0;
  for (const Linear* linear : joint.members)
    tiles += (linear->matrix().size(0) + joint.in_features()) / kernels::kGradTileColumns + 2;
  return tiles;
}

/// Rows of several tensors, one below another and `pitch` bytes apart; zeros elsewhere.
struct StackedRows {
  struct Part {
    ReadBytes read;
    int64_t first_row, rows, row_bytes;
  };
  std::vector<Part> parts;
  int64_t pitch;

  void operator()(int64_t begin, std::span<std::byte> to) const {
    std::fill(to.begin(), to.end(), std::byte{0});
    const int64_t end = begin + static_cast<int64_t>(to.size());
    for (const Part& part : parts) {
      if (part.row_bytes == pitch) {
        read_bytes(part, begin, to);
        continue;
      }
      const int64_t last = std::min(part.first_row + part.rows, (end + pitch - 1) / pitch);
      const int64_t at_once = std::max<int64_t>(1, kMaxBytes / part.row_bytes);
      for (int64_t row = std::max(part.first_row, begin / pitch); row < last; row += at_once)
        read_rows(part, row, std::min(at_once, last - row), begin, to);
    }
  }

 private:
  static constexpr int64_t kMaxBytes = int64_t{16} << 20;  // that are read at once

  /// Rows without gaps.
  void read_bytes(const Part& part, int64_t begin, std::span<std::byte> to) const {
    const int64_t of_part = part.first_row * pitch, end = begin + static_cast<int64_t>(to.size()),
                  first = std::max(begin, of_part),
                  last = std::min(end, of_part + part.rows * pitch);
    if (first < last)
      part.read(first - of_part,
                to.subspan(static_cast<size_t>(first - begin), static_cast<size_t>(last - first)));
  }

  void read_rows(const Part& part, int64_t first, int64_t count, int64_t begin,
                 std::span<std::byte> to) const {
    std::vector<std::byte> rows(static_cast<size_t>(count * part.row_bytes));
    part.read((first - part.first_row) * part.row_bytes, rows);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = (first + i) * pitch - begin, skipped = std::max<int64_t>(0, -place);
      const int64_t size =
          std::min(part.row_bytes, static_cast<int64_t>(to.size()) - place) - skipped;
      if (size > 0)
        std::memcpy(to.data() + place + skipped, rows.data() + i * part.row_bytes + skipped,
                    static_cast<size_t>(size));
    }
  }
};

ReadBytes reader_of(const at::Tensor& tensor, UnreadStorages& unread) {
  const auto found = unread.extract(tensor.storage().unsafeGetStorageImpl());
  if (!found.empty()) return found.mapped();
  return [bytes = tensor.view({-1}).view(at::kByte)](int64_t begin, std::span<std::byte> to) {
    const at::Tensor host = bytes.narrow(0, begin, static_cast<int64_t>(to.size())).cpu();
    std::memcpy(to.data(), host.const_data_ptr(), to.size());
  };
}

/// Moves tensors into one, one below another. They become views of it.
/// @param spare zeros after each dimension's values
at::Tensor stacked(const std::vector<at::Tensor*>& tensors, int64_t spare, UnreadStorages& unread) {
  const at::Tensor& first = *tensors.front();
  std::vector<int64_t> shape = first.sizes().vec();
  shape[0] = 0;
  for (const at::Tensor* tensor : tensors) shape[0] += tensor->size(0);
  for (int64_t& size : shape) size += spare;
  const bool is_unread = std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor* tensor) {
    return unread.contains(tensor->storage().unsafeGetStorageImpl());
  });
  const at::Tensor all = is_unread ? without_memory(shape, first.scalar_type(), first.device())
                                   : at::zeros(shape, first.options());
  StackedRows rows{.parts = {}, .pitch = all.stride(0) * static_cast<int64_t>(all.itemsize())};
  int64_t row = 0;
  for (at::Tensor* tensor : tensors) {
    const int64_t count = tensor->size(0);
    at::Tensor place = all.narrow(0, row, count);
    if (spare > 0) place = place.narrow(1, 0, tensor->size(1));
    if (is_unread)
      rows.parts.push_back(
          {reader_of(*tensor, unread), row, count, static_cast<int64_t>(tensor->nbytes()) / count});
    else
      place.copy_(*tensor);
    *tensor = place;
    row += count;
  }
  if (is_unread) unread[all.storage().unsafeGetStorageImpl()] = std::move(rows);
  return all;
}

/// Moves the weights into one matrix, together with `a` and `b`.
void move_weights(const std::vector<Linear*>& linears, JointLinears& joint,
                  UnreadStorages& unread) {
  const int64_t rows = joint.out_features(), columns = joint.in_features(), ranks = joint.ranks();
  std::vector<at::Tensor*> weights;
  for (Linear* linear : linears) weights.push_back(&linear->weight);
  joint.whole = stacked(weights, ranks, unread);
  if (!joint.has_adapters()) return;
  joint.a = joint.whole.narrow(1, 0, columns).narrow(0, rows, ranks);
  joint.b = joint.whole.narrow(0, 0, rows).narrow(1, columns, ranks);
}

void move_codes(const std::vector<Linear*>& linears, JointLinears& joint, UnreadStorages& unread) {
  std::vector<at::Tensor*> codes, scales;
  for (Linear* linear : linears) {
    codes.push_back(&linear->quantized->packed);
    scales.push_back(&linear->quantized->absmax);
  }
  joint.fp8 = *linears.front()->quantized;
  joint.fp8->rows = joint.out_features();
  joint.fp8->packed = stacked(codes, 0, unread);
  joint.fp8->absmax = stacked(scales, 0, unread);
  joint.ones = at::ones({1, joint.in_features()}, joint.fp8->absmax.options());
}

int64_t address_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(tensor.const_data_ptr()));
}

/// A view [T, N + spare] of rows including their padding; undefined if there is too little.
at::Tensor with_spare(const at::Tensor& rows, int64_t spare) {
  const int64_t columns = rows.size(1) + spare;
  // The stride of a single row is meaningless, so the storage size is checked, too.
  const int64_t end = rows.storage_offset() + (rows.size(0) - 1) * rows.stride(0) + columns;
  const bool is_stored = end * rows.element_size() <= static_cast<int64_t>(rows.storage().nbytes());
  if (rows.stride(0) < columns || !is_stored) return {};
  return rows.as_strided({rows.size(0), columns}, rows.strides());
}

/// [x | x a^T] in x's memory; undefined if the padding is too small.   @param low copy of x a^T
at::Tensor with_low(const at::Tensor& x, const JointLinears& joint, at::Tensor* low) {
  if (joint.spare() == 0) return {};
  const at::Tensor all = with_spare(x, joint.spare());
  if (!all.defined()) return {};
  at::Tensor columns = all.narrow(1, x.size(1), joint.ranks());
  at::mm_out(columns, x, joint.a.t());
  if (low != nullptr)  // x's memory is freed after the pass
    *low = columns.clone(at::MemoryFormat::Contiguous);
  return all;
}

/// y += base + x a^T b^T   @param base undefined: 0
void add_adapters(const at::Tensor& x, const JointLinears& joint, at::Tensor* low, at::Tensor& y,
                  const at::Tensor& base = {}) {
  const at::Tensor columns = at::mm(x, joint.a.t());
  if (low != nullptr) *low = columns;
  kernels::add_low_rank_(y, columns, joint.b.t(), base);
}

/// FP8: products with codes; the adapters are separate products.
JointGrads fp8_input_grad(const at::Tensor& dy, const JointLinears& joint, bool needs_dx) {
  JointGrads grads;
  if (joint.has_adapters()) grads.d_low = at::mm(dy, joint.b);
  if (!needs_dx) return grads;
  kernels::Product term{dy, *joint.fp8};
  if (kernels::multiplies_transposed_codes(term))
    term.transposed_codes = {joint.prefetcher->values(joint, JointPart::kWeights), joint.ones};
  grads.dx = kernels::matmul_sum({term});
  if (term.transposed_codes.codes.defined()) joint.release();
  if (joint.has_adapters()) kernels::add_low_rank_(grads.dx, grads.d_low, joint.a);
  return grads;
}

/// Separate products for the adapters, if any.
JointGrads apart_input_grad(const at::Tensor& dy, const JointLinears& joint, bool needs_dx) {
  JointGrads grads;
  if (joint.has_adapters()) grads.d_low = at::mm(dy, joint.b);  // b includes the scales
  if (!needs_dx) return grads;
  grads.dx = at::mm(dy, joint.weights());
  joint.release();
  if (joint.has_adapters()) kernels::add_low_rank_(grads.dx, grads.d_low, joint.a);
  return grads;
}

}  // namespace

bool can_join(const std::vector<Linear*>& linears) {
  const auto agree = [&](auto&& claim) {
    return std::all_of(linears.begin(), linears.end(), claim) ||
           std::none_of(linears.begin(), linears.end(), claim);
  };
  return (linears.size() > 1 || ranks_for(linears) > 0) &&
         std::all_of(linears.begin(), linears.end(),
                     [](const Linear* linear) { return can_be_part(*linear); }) &&
         agree([](const Linear* linear) { return linear->bias.defined(); }) &&
         agree([](const Linear* linear) { return linear->quantized.has_value(); }) &&
         agree([](const Linear* linear) { return is_in_fp8(*linear); });
}

int64_t JointLinears::out_features() const {
  int64_t sum = 0;
  for (const Linear* linear : members) sum += linear->matrix().size(0);
  return sum;
}

at::Tensor JointLinears::part(JointPart which) const {
  const at::Tensor all = prefetcher ? prefetcher->values(*this, which) : whole;
  const bool below = which == JointPart::kWeightsAndA, beside = which == JointPart::kWeightsAndB;
  return all.narrow(0, 0, out_features() + (below ? ranks() : 0))
      .narrow(1, 0, in_features() + (beside ? ranks() : 0));
}

at::Tensor JointLinears::weights() const {
  return part(JointPart::kWeights);
}

at::Tensor JointLinears::weights_and_b() const {
  return part(JointPart::kWeightsAndB);
}

at::Tensor JointLinears::weights_and_a() const {
  return part(JointPart::kWeightsAndA);
}

at::Tensor JointLinears::rows_of_a() const {
  return with_spare(a, ranks());
}

JointLinears join(const std::vector<Linear*>& linears, UnreadStorages& unread) {
  JointLinears joint;
  joint.members.assign(linears.begin(), linears.end());
  std::vector<at::Tensor*> biases;
  for (Linear* linear : linears)
    if (linear->bias.defined()) biases.push_back(&linear->bias);
  if (!biases.empty()) joint.bias = stacked(biases, 0, unread);
  if (const int64_t ranks = ranks_for(linears); ranks > 0) {
    const at::TensorOptions options = adapter_options(linears);
    // Padded, so that its rows are contiguous with those of the unpacked weights, which are padded.
    const int64_t columns = joint.in_features();
    joint.a = at::zeros({ranks, columns + ranks}, options).narrow(1, 0, columns);
    joint.b = at::zeros({joint.out_features(), ranks}, options);
    joint.arrivals = at::zeros({max_grad_tiles(joint)}, options.dtype(at::kInt));
  }
  if (is_in_fp8(*linears.front()))
    move_codes(linears, joint, unread);
  else if (!joint.is_quantized())
    move_weights(linears, joint, unread);
  return joint;
}

at::Tensor joint_forward(const at::Tensor& x, const JointLinears& joint, int64_t spare,
                         at::Tensor* low, bool adapters) {
  if (joint.fp8) {
    at::Tensor y = kernels::matmul_sum({{x, *joint.fp8, /*transposed=*/true}}, {}, joint.bias);
    if (adapters && joint.has_adapters()) add_adapters(x, joint, low, y);
    return y;
  }
  at::Tensor y = kernels::empty_rows(x.size(0), joint.out_features(), spare, x.options());
  const at::Tensor all = adapters ? with_low(x, joint, low) : at::Tensor(),
                   &read = all.defined() ? all : x,
                   weights = all.defined() ? joint.weights_and_b() : joint.weights();
  if (joint.bias.defined())
    at::addmm_out(y, joint.bias, read, weights.t());
  else
    at::mm_out(y, read, weights.t());
  joint.release();
  if (adapters && joint.has_adapters() && !all.defined()) add_adapters(x, joint, low, y);
  return y;
}

void add_joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low,
                       at::Tensor y, bool adapters) {
  const bool adds_adapters = adapters && joint.has_adapters();
  at::Tensor all, product;  // the latter is still to be added
  if (joint.fp8) {
    product = kernels::matmul_sum({{x, *joint.fp8, /*transposed=*/true}});
  } else {
    if (adds_adapters) all = with_low(x, joint, low);
    if (all.defined())
      y.addmm_(all, joint.weights_and_b().t());
    else
      y.addmm_(x, joint.weights().t());
    joint.release();
  }
  if (joint.bias.defined()) y.add_(joint.bias);
  if (adds_adapters && !all.defined())
    add_adapters(x, joint, low, y, product);
  else if (product.defined())
    y.add_(product);
}

JointGrads joint_input_grad(const at::Tensor& dy, const JointLinears& joint, bool needs_dx) {
  if (joint.fp8) return fp8_input_grad(dy, joint, needs_dx);
  const at::Tensor all = joint.has_adapters() ? with_spare(dy, joint.spare()) : at::Tensor();
  if (!all.defined()) return apart_input_grad(dy, joint, needs_dx);
  JointGrads grads{{}, all.narrow(1, joint.out_features(), joint.spare())};
  at::mm_out(grads.d_low, dy, joint.b);
  if (!needs_dx) return grads;
  grads.dx = at::mm(all, joint.weights_and_a());
  joint.release();
  return grads;
}

void add_joint_adapter_grads(const at::Tensor& dy, const at::Tensor& x,
                             const kernels::NormFactors& norm, const at::Tensor& low,
                             const at::Tensor& d_low, const JointLinears& joint) {
  std::vector<kernels::AdapterGrad> grads;
  for_members(joint, [&](const Linear& linear, int64_t row, int64_t column) {
    if (!linear.lora) return;
    const LoraAdapter& lora = *linear.lora;
    const int64_t rank = rank_of(linear);
    grads.push_back({lora.b->grad, dy.narrow(1, row, linear.matrix().size(0)),
                     low.narrow(1, column, rank), lora.scale});
    grads.push_back({lora.a->grad, d_low.narrow(1, column, rank), x, 1, norm});
  });
  kernels::add_adapter_grads_(grads, joint.arrivals);
}

void JointAdapters::add(const JointLinears& joint) {
  if (joint.has_adapters()) joints_.push_back(&joint);
}

std::vector<kernels::MatrixCopy> JointAdapters::copies() const {
  std::vector<kernels::MatrixCopy> all;
  for (const JointLinears* joint : joints_) {
    for_members(*joint, [&](const Linear& linear, int64_t row, int64_t column) {
      if (!linear.lora) return;
      const LoraAdapter& lora = *linear.lora;
      const int64_t rank = rank_of(linear), rows = linear.matrix().size(0);
      all.push_back({lora.a->compute, joint->a.narrow(0, column, rank), 1});
      all.push_back(
          {lora.b->compute, joint->b.narrow(0, row, rows).narrow(1, column, rank), lora.scale});
    });
  }
  return all;
}

void JointAdapters::refresh() {
  if (joints_.empty()) return;
  if (!table_.defined()) {
    const std::vector<kernels::MatrixCopy> all = copies();
    table_ = kernels::copy_table(all);
    first_ = all.front();
    from_ = address_of(first_.from), to_ = address_of(first_.to);
  }
  const int64_t from = address_of(first_.from), to = address_of(first_.to);
  if (from != from_ || to != to_) kernels::move_table(table_, from - from_, to - to_);
  from_ = from, to_ = to;
  kernels::copy_matrices(table_, first_.to);
}

}  // namespace sftrun::layers
