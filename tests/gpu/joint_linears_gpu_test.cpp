#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <tuple>

#include "sftrun/layers/joint_linears.h"
#include "support.h"
#include "support/tensors.h"

/// Joint linears on a card beside the sums that they stand for, in fp64.
namespace sftrun::layers {
namespace {

using test::close;
using test::normal;

using test::kCard;

at::Tensor exact(const at::Tensor& x) {
  return x.cpu().to(at::kDouble);
}

/// Linears of one input, each with or without an adapter, and what they hold in fp64.
class Linears {
 public:
  struct Spec {
    int64_t out, rank;
  };

  Linears(const std::vector<Spec>& specs, int64_t in, at::ScalarType dtype,
          std::optional<QuantFormat> format, bool biased)
      : in_(in), dtype_(dtype), format_(format) {
    for (const Spec& spec : specs) {
      if (spec.rank == 0) continue;
      store_.add("a", {spec.rank, in}, 0, true);
      store_.add("b", {spec.out, spec.rank}, 0, true);
    }
    store_.allocate(dtype, kCard);
    auto next = store_.parameters().begin();
    for (const Spec& spec : specs) {
      add(spec, biased);
      if (spec.rank == 0) continue;
      LoraAdapter adapter;
      adapter.a = &*next++, adapter.b = &*next++;
      adapter.scale = 0.5 + static_cast<double>(linears_.size());
      linears_.back()->lora = adapter;
    }
    draw_adapters(100);
  }

  void draw_adapters(uint64_t seed) {
    for (Parameter& parameter : store_.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed).mul_(0.2));
    store_.refresh_compute();
  }
  std::vector<Linear*> pointers() {
    std::vector<Linear*> result;
    for (const auto& linear : linears_) result.push_back(linear.get());
    return result;
  }
  const std::vector<at::Tensor>& weights() const { return weights_; }  ///< fp64
  const std::vector<std::unique_ptr<Linear>>& all() const { return linears_; }
  ParameterStore& store() { return store_; }

 private:
  void add(const Spec& spec, bool biased) {
    auto linear = std::make_unique<Linear>();
    const at::Tensor weight = normal({spec.out, in_}, ++seed_).mul_(0.1);
    if (format_) {
      linear->quantized = kernels::quantize(weight, {.format = *format_}).to(kCard);
      weights_.push_back(exact(kernels::dequantize(*linear->quantized, at::kFloat)));
    } else {
      linear->weight = weight.to(kCard, dtype_);
      weights_.push_back(exact(linear->weight));
    }
    if (biased) linear->bias = normal({spec.out}, ++seed_, dtype_).to(kCard);
    linears_.push_back(std::move(linear));
  }

  int64_t in_;
  at::ScalarType dtype_;
  std::optional<QuantFormat> format_;
  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<Linear>> linears_;
  std::vector<at::Tensor> weights_;
  ParameterStore store_;
};

using Specs = std::vector<Linears::Spec>;
const Specs kSpecs[] = {
    {{64, 8}, {32, 4}, {32, 0}},
    {{96, 16}},
    {{48, 0}, {48, 0}},
    {{40, 5}, {24, 3}},
    {{64, 8}, {32, 0}, {32, 4}},                     // one without an adapter between others
    {{16, 4}, {16, 8}, {16, 2}, {32, 16}, {16, 4}},  // more than one product of gradients has
    {{64, 48}, {32, 40}}};                           // more ranks than a block has
constexpr int64_t kIn = 80, kTokens = 37;

class GpuJointLinears
    : public testing::TestWithParam<std::tuple<at::ScalarType, std::optional<QuantFormat>>> {
 protected:
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  std::optional<QuantFormat> format() const { return std::get<1>(GetParam()); }
  bool rounds_inputs() const { return format() == QuantFormat::kFp8; }
  double tolerance() const {
    if (rounds_inputs()) return 8e-2;  // e4m3 has three bits behind the first
    return dtype() == at::kFloat ? 2e-5 : 2e-2;
  }

  /// Joined, with what unpacks quantised ones.
  JointLinears joined(Linears& linears) {
    UnreadStorages unread;
    JointLinears joint = join(linears.pointers(), unread);
    if (!joint.is_quantized()) return joint;
    unpacking_ = std::make_unique<DequantPrefetcher>(kCard, dtype(), /*units_leave=*/false);
    unpacking_->serve(joint);
    joint.prefetcher = unpacking_.get();
    return joint;
  }
  /// After adapters have changed, as the decoder does before each micro-batch.
  void begin() {
    if (unpacking_) unpacking_->begin(DequantPrefetcher::Pass::kForward);
  }

 private:
  std::unique_ptr<DequantPrefetcher> unpacking_;
};
INSTANTIATE_TEST_SUITE_P(Types, GpuJointLinears,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values(std::optional<QuantFormat>(),
                                                          QuantFormat::kNf4, QuantFormat::kInt8,
                                                          QuantFormat::kFp8)),
                         [](const auto& info) {
                           const auto format = std::get<1>(info.param);
                           return std::string(std::get<0>(info.param) == at::kFloat ? "fp32_"
                                                                                    : "bf16_") +
                                  (format ? std::string(quant_info(*format).name) : "dense");
                         });

at::Tensor forward_in_fp64(const Linears& linears, const at::Tensor& x, bool adapters = true) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < linears.all().size(); ++i) {
    const Linear& linear = *linears.all()[i];
    at::Tensor y = at::mm(exact(x), linears.weights()[i].t());
    if (linear.bias.defined()) y = y + exact(linear.bias);
    if (linear.lora && adapters) {
      const at::Tensor low = at::mm(exact(x), exact(linear.lora->a->compute).t());
      y = y + linear.lora->scale * at::mm(low, exact(linear.lora->b->compute).t());
    }
    parts.push_back(y);
  }
  return at::cat(parts, 1);
}

/// The same rows, with room for `spare` columns behind each.
at::Tensor with_room(const at::Tensor& x, int64_t spare) {
  at::Tensor rows = kernels::empty_rows(x.size(0), x.size(1), spare, x.options());
  return rows.copy_(x);
}

/// Without the adapters, and added to `base`.
void expect_base_alone(const Linears& linears, const JointLinears& joint, const at::Tensor& x,
                       const at::Tensor& base, double tolerance) {
  const at::Tensor expected = forward_in_fp64(linears, x, /*adapters=*/false), sum = base.clone();
  const at::Tensor y = joint_forward(x, joint, 0, nullptr, /*adapters=*/false);
  EXPECT_TRUE(close(y.cpu(), expected, tolerance));
  add_joint_forward(x, joint, nullptr, sum, /*adapters=*/false);
  EXPECT_TRUE(close(sum.cpu(), expected + exact(base), tolerance));
}

/// With room behind the rows of x and without.
TEST_P(GpuJointLinears, Forward) {
  const at::NoGradGuard no_grad;
  for (const bool biased : {false, true}) {
    for (const Specs& specs : kSpecs) {
      Linears linears(specs, kIn, dtype(), format(), biased);
      if (!can_join(linears.pointers())) continue;
      JointLinears joint = joined(linears);
      JointAdapters adapters;
      adapters.add(joint);
      const at::Tensor x = normal({kTokens, kIn}, 7, dtype()).to(kCard),
                       base = normal({kTokens, joint.out_features()}, 8, dtype()).to(kCard);
      for (const uint64_t seed : {200, 300}) {  // changed adapters are read again
        linears.draw_adapters(seed);
        adapters.refresh();
        begin();
        const at::Tensor expected = forward_in_fp64(linears, x);
        for (const int64_t spare : {int64_t{0}, joint.spare(), joint.ranks() + 5}) {
          const at::Tensor rows = with_room(x, spare), sum = base.clone();
          at::Tensor low;
          EXPECT_TRUE(
              close(joint_forward(rows, joint, joint.spare(), &low).cpu(), expected, tolerance()));
          add_joint_forward(rows, joint, nullptr, sum);
          EXPECT_TRUE(close(sum.cpu(), expected + exact(base), tolerance()));
          EXPECT_TRUE(at::equal(rows, x));
          expect_base_alone(linears, joint, rows, base, tolerance());
          if (!joint.has_adapters()) continue;
          EXPECT_TRUE(close(low.cpu(), at::mm(exact(x), exact(joint.a).t()), tolerance()));
          // What is kept for the backward pass keeps no memory of x.
          EXPECT_EQ(low.storage().nbytes(), low.nbytes());
        }
        // The stride of a single row, as empty_like takes it from a wider matrix, is no room.
        const at::Tensor row = at::empty_strided({1, kIn}, {kIn + joint.spare(), 1}, x.options());
        row.copy_(x.narrow(0, 0, 1));
        at::Tensor low;
        EXPECT_TRUE(close(joint_forward(row, joint, joint.spare(), &low).cpu(),
                          expected.narrow(0, 0, 1), tolerance()));
      }
    }
  }
}

/// With room behind the rows of dy and without; x as it is, and normed.
TEST_P(GpuJointLinears, Backward) {
  const at::NoGradGuard no_grad;
  for (const Specs& specs : kSpecs) {
    for (const bool has_room : {false, true}) {
      Linears linears(specs, kIn, dtype(), format(), /*biased=*/false);
      if (!can_join(linears.pointers())) continue;
      const JointLinears joint = joined(linears);
      JointAdapters adapters;
      adapters.add(joint);
      adapters.refresh();
      const at::Tensor x = normal({kTokens, kIn}, 7, dtype()).to(kCard),
                       weight = normal({kIn}, 9, dtype()).to(kCard);
      const kernels::NormFactors norm{normal({kTokens}, 10).abs_().to(kCard), weight, 1};
      const at::Tensor read =
          exact(x) * exact(norm.rstd).unsqueeze(1) * (exact(weight) + norm.offset);
      at::Tensor low;
      joint_forward(read.to(dtype()).to(kCard), joint, 0, &low);
      const at::Tensor dy = kernels::empty_rows(kTokens, joint.out_features(),
                                                has_room ? joint.spare() : 0, x.options());
      dy.copy_(normal(dy.sizes(), 11));
      const JointGrads grads = joint_input_grad(dy, joint, /*needs_dx=*/true);
      if (joint.has_adapters()) add_joint_adapter_grads(dy, x, norm, low, grads.d_low, joint);

      at::Tensor dx = at::zeros({kTokens, kIn}, at::kDouble);
      int64_t row = 0;
      for (size_t i = 0; i < specs.size(); ++i) {
        const Linear& linear = *linears.all()[i];
        const at::Tensor own = exact(dy).narrow(1, row, specs[i].out);
        row += specs[i].out;
        dx += at::mm(own, linears.weights()[i]);
        if (!linear.lora) continue;
        const LoraAdapter& lora = *linear.lora;
        const at::Tensor a = exact(lora.a->compute), b = exact(lora.b->compute),
                         d_low = lora.scale * at::mm(own, b);
        dx += at::mm(d_low, a);
        EXPECT_TRUE(close(lora.a->grad.cpu(), at::mm(d_low.t(), read), tolerance())) << i;
        EXPECT_TRUE(close(lora.b->grad.cpu(), lora.scale * at::mm(own.t(), at::mm(read, a.t())),
                          tolerance()))
            << i;
      }
      EXPECT_TRUE(close(grads.dx.cpu(), dx, tolerance())) << "room: " << has_room;
    }
  }
}

/// Divided among blocks, for which the joint linears hold the counters.
TEST(GpuJointAdapters, GradientsOfManyTokens) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kMany = 3100, kFew = 64;
  Linears linears({{40, 8}}, kFew, at::kBFloat16, {}, /*biased=*/false);
  UnreadStorages unread;
  JointLinears joint = join(linears.pointers(), unread);
  JointAdapters adapters;
  adapters.add(joint);
  adapters.refresh();
  const at::Tensor x = normal({kMany, kFew}, 7, at::kBFloat16).to(kCard),
                   dy = normal({kMany, 40}, 8, at::kBFloat16).to(kCard);
  const auto gradients = [&] {
    linears.store().zero_grad();
    at::Tensor low;
    joint_forward(x, joint, 0, &low);
    const JointGrads grads = joint_input_grad(dy, joint, /*needs_dx=*/false);
    add_joint_adapter_grads(dy, x, {}, low, grads.d_low, joint);
    const LoraAdapter& lora = *linears.all()[0]->lora;
    return at::cat({lora.a->grad.flatten(), lora.b->grad.flatten()}).cpu();
  };
  const at::Tensor divided = gradients();
  EXPECT_EQ(joint.arrivals.sum().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(divided, gradients()));
  joint.arrivals = at::Tensor();
  const at::Tensor undivided = gradients();
  EXPECT_TRUE(close(divided, undivided, 1e-5));
  EXPECT_FALSE(at::equal(divided, undivided));
}

constexpr JointPart kParts[] = {JointPart::kWeightsAndB, JointPart::kWeightsAndA,
                                JointPart::kWeights};

/// The part that was asked for of an unpacked joint matrix.
void expect_part(const at::Tensor& found, JointPart part, const JointLinears& joint,
                 const std::vector<at::Tensor>& weights) {
  const int64_t rows = joint.out_features(), columns = joint.in_features(), ranks = joint.ranks();
  ASSERT_EQ(found.sizes(), at::IntArrayRef({rows + ranks, columns + ranks}));
  const at::Tensor beside = found.narrow(0, 0, rows).narrow(1, columns, ranks),
                   below = found.narrow(0, rows, ranks).narrow(1, 0, columns);
  EXPECT_TRUE(close(found.narrow(0, 0, rows).narrow(1, 0, columns), at::cat(weights), 0));
  EXPECT_TRUE(part != JointPart::kWeightsAndB || close(beside, exact(joint.b), 0));
  EXPECT_TRUE(part != JointPart::kWeightsAndA || close(below, exact(joint.a), 0));
}

/// Whatever is asked for, in the order of the pass before or another, and of either direction.
TEST(GpuDequantPrefetcher, GivesWhatIsAskedForInAnyOrder) {
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<Linears>> groups;
  std::vector<JointLinears> joints;
  DequantPrefetcher unpacking(kCard, at::kFloat, /*units_leave=*/false);
  for (const int64_t out : {32, 96, 64, 16}) {
    const Specs specs = {{out, 4}, {48, 0}};
    const QuantFormat format = out == 64 ? QuantFormat::kInt8 : QuantFormat::kNf4;
    groups.push_back(std::make_unique<Linears>(specs, kIn, at::kFloat, format, false));
    UnreadStorages unread;
    joints.push_back(join(groups.back()->pointers(), unread));
    JointLinears& joint = joints.back();
    joint.a.copy_(normal(joint.a.sizes(), static_cast<uint64_t>(out)));
    joint.b.copy_(normal(joint.b.sizes(), static_cast<uint64_t>(out) + 1));
    unpacking.serve(joints.back());
  }
  using Pass = DequantPrefetcher::Pass;
  const std::vector<std::pair<Pass, std::vector<size_t>>> passes = {
      {Pass::kTraining, {0, 1, 2, 3, 3, 2, 1, 0}},
      {Pass::kTraining, {0, 1, 2, 3, 3, 2, 1, 0}},
      {Pass::kForward, {0, 1, 2, 3}},
      {Pass::kTraining, {0, 2, 1}},
      {Pass::kTraining, {0, 2, 1, 3, 1, 1, 0, 2}},
      {Pass::kForward, {0, 1, 2, 3, 0, 1}},
      {Pass::kTraining, {3}},
      {Pass::kTraining, {0, 2, 1, 3, 1}}};
  // One group whose reader does not say when it is done: the next are unpacked when asked for.
  size_t shift = 0;
  for (const size_t skipped : {9UL, 1UL, 0UL})
    for (const auto& [pass, order] : passes) {
      unpacking.begin(pass);
      for (size_t asked = 0; asked < order.size(); ++asked) {
        const size_t i = order[asked];
        const JointPart part = kParts[(asked + shift) % std::size(kParts)];
        SCOPED_TRACE(asked);
        expect_part(unpacking.values(joints[i], part).cpu(), part, joints[i], groups[i]->weights());
        if (i != skipped) unpacking.done();
      }
      shift += pass == Pass::kForward ? 1 : 0;  // another part of the same group
    }
}

/// Units that are in memory while they are used. The next one may be on its way.
class LeavingUnits : public UnitHooks {
 public:
  explicit LeavingUnits(const std::vector<std::unique_ptr<JointLinears>>& joints) {
    for (const auto& joint : joints) {
      Unit& unit = units_.emplace_back();
      unit.joint = joint.get();
      for (const Linear* linear : joint->members)
        for (const at::Tensor& tensor : linear->quantized->tensors()) unit.frozen.add(tensor);
      unit.frozen.place();
      unit.bytes = at::empty_like(unit.frozen.bytes(), at::TensorOptions().device(kCard));
      unit.frozen.read(0, unit.bytes);
      unit.frozen.forget_sources();
      unit.b = joint->b.clone();
      unit.joint->b.fill_(kNaN);
    }
  }
  void enter(size_t unit) {
    bring(unit);
    units_[unit].joint->b.copy_(units_[unit].b);
  }
  void leave(size_t unit) {
    release_memory(units_[unit].frozen.bytes());
    units_[unit].joint->b.fill_(kNaN);
  }
  bool await_frozen(int64_t unit) override {
    if (unit != on_its_way) return false;
    ++num_awaited;
    bring(static_cast<size_t>(unit));
    return true;
  }
  int64_t on_its_way = -1, num_awaited = 0;

 private:
  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  struct Unit {
    const JointLinears* joint = nullptr;
    FrozenStorage frozen;
    at::Tensor bytes, b;
  };
  void bring(size_t unit) {
    const at::Tensor& memory = units_[unit].frozen.bytes();
    if (memory.storage().data() != nullptr) return;
    reserve_memory(memory);
    memory.copy_(units_[unit].bytes);
  }
  std::vector<Unit> units_;
};

/// A unit's weights are unpacked as soon as they arrive, its adapters added when it is used.
TEST(GpuDequantPrefetcher, UnpacksTheNextUnitWhenItArrives) {
  const at::NoGradGuard no_grad;
  DequantPrefetcher unpacking(kCard, at::kFloat, /*units_leave=*/true);
  std::vector<std::unique_ptr<Linears>> groups;
  std::vector<std::unique_ptr<JointLinears>> joints;
  for (const int64_t out : {32, 96, 64}) {
    groups.push_back(std::make_unique<Linears>(Specs{{out, 4}, {48, 0}}, kIn, at::kFloat,
                                               QuantFormat::kNf4, /*biased=*/false));
    UnreadStorages unread;
    joints.push_back(std::make_unique<JointLinears>(join(groups.back()->pointers(), unread)));
    joints.back()->unit = static_cast<int64_t>(joints.size()) - 1;
    joints.back()->b.copy_(normal(joints.back()->b.sizes(), static_cast<uint64_t>(out)));
    unpacking.serve(*joints.back());
  }
  LeavingUnits units(joints);
  const std::vector<size_t> order = {0, 1, 2, 2, 1, 0};
  for (int pass = 0; pass < 3; ++pass) {
    units.num_awaited = 0;
    unpacking.begin(DequantPrefetcher::Pass::kTraining, &units);
    for (size_t used = 0; used < order.size(); ++used) {
      const size_t unit = order[used];
      units.enter(unit);
      units.on_its_way = used + 1 < order.size() ? static_cast<int64_t>(order[used + 1]) : -1;
      unpacking.arrived(static_cast<int64_t>(unit));
      const JointPart part = used < 3 ? JointPart::kWeightsAndB : JointPart::kWeightsAndA;
      expect_part(unpacking.values(*joints[unit], part).cpu(), part, *joints[unit],
                  groups[unit]->weights());
      unpacking.done();
      unpacking.leaving(static_cast<int64_t>(unit));
      units.leave(unit);
    }
    // Not in the first pass, whose order nobody knows. On the way back unit 1 is still unpacked.
    EXPECT_EQ(units.num_awaited, pass == 0 ? 0 : 3);
  }
}

TEST(GpuCanJoin, MatricesOfOneKindAlone) {
  const at::NoGradGuard no_grad;
  const Specs one = {{32, 4}}, bare = {{32, 0}};
  Linears dense(one, kIn, at::kFloat, {}, false), other(one, kIn, at::kFloat, {}, true),
      quantised(one, kIn, at::kFloat, QuantFormat::kNf4, false),
      fp8(one, kIn, at::kFloat, QuantFormat::kFp8, false),
      without(bare, kIn, at::kFloat, {}, false);
  const auto both = [](Linears& a, Linears& b) {
    return std::vector<Linear*>{a.pointers()[0], b.pointers()[0]};
  };
  EXPECT_TRUE(can_join(dense.pointers()));
  EXPECT_FALSE(can_join(without.pointers()));  // alone nothing is gained
  EXPECT_TRUE(can_join(both(dense, without)));
  EXPECT_FALSE(can_join(both(dense, other)));  // one has a bias
  EXPECT_FALSE(can_join(both(dense, quantised)));
  EXPECT_FALSE(can_join(both(quantised, fp8)));
  dense.pointers()[0]->lora->dropout = 0.1;
  EXPECT_FALSE(can_join(dense.pointers()));
}

}  // namespace
}  // namespace sftrun::layers
