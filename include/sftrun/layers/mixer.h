#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/generation_pass.h"
#include "sftrun/layers/joint_linears.h"
#include "sftrun/layers/members.h"
#include "sftrun/spec/arch_spec.h"

/// The first block of a layer, in which the tokens of a document read one another. A kind of mixer is
/// a class here, which its namespace makes (`SFTRUN_MIXERS`), and a row in spec/blocks/.
namespace sftrun::layers {

struct Layer;

/// A mixer in a forward and a backward pass of the fused backend. Layer, mixer and batch outlive it.
/// Called with autograd off: a pass that wants it sets at::AutoGradMode and makes leaves of its own.
/// Weights are read from `Weight::weight`; gradients are added to `Parameter::grad` (fp32).
class MixerPass {
 public:
  virtual ~MixerPass() = default;
  /// x + residual_scale * norm_out(mixer(norm_in(x))).   @param x [T, hidden]
  /// @param keeps the state for `backward`; without it a later call may keep it
  virtual at::Tensor forward(const at::Tensor& x, bool keeps) = 0;
  /// Gives up the state. Adds to the gradients of parameters.
  /// @param grad gradient of the output   @return gradient of the input; undefined when !needs_dx
  virtual at::Tensor backward(const at::Tensor& grad, bool needs_dx) = 0;
  /// Whether anything of the mixer or its norms needs its gradient.
  virtual bool needs_gradient() const = 0;
};

/// Keys and values that layers share, as leaves of autograd (plain backend).
struct SharedKeys {
  at::Tensor k, v;
};

/// Linears with the same input, and their joint linear; no linears: they stay apart.
struct Joinable {
  JointLinears* joint = nullptr;
  std::vector<Linear*> linears;
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  /// With the roles of its block in spec/blocks.h, without the norms around the mixer. Linears that
  /// the model does not have have no name.
  virtual BlockMembers members() = 0;
  /// Linears whose products may be one on CUDA, beside the output's.
  virtual std::vector<Joinable> joints() { return {}; }

  virtual std::unique_ptr<MixerPass> pass(const Layer& layer, const BatchContext& batch) const = 0;
  /// The same with ATen operations under autograd, without the norms around it: x [T, hidden] after
  /// the first norm.   @param shared keys that other layers reuse, or that this one does
  virtual at::Tensor plain(const at::Tensor& x, const BatchContext& batch,
                           SharedKeys& shared) const = 0;

  /// null: it keeps nothing of its own.   @param options dtype and device
  virtual std::unique_ptr<LayerCache> make_cache(const at::TensorOptions& options) const = 0;
  /// `MixerPass::forward` for the tokens of a pass; keeps what later tokens read in `pass.caches`.
  /// Decode row i is row i of the cache. Mixers with a state (spec::has_state) get one prefill row
  /// and no decode rows, or decode rows only, without `cu_seqlens`.
  virtual at::Tensor generate(const Layer& layer, const at::Tensor& x,
                              const GenerationPass& pass) const = 0;
  /// Whether its kernels have the same launches for documents of any lengths, so that a CUDA graph
  /// can record them.
  virtual bool is_static(at::ScalarType dtype) const = 0;

  Linear output;  ///< [hidden, ...]; its sum with the layer's input is the block's output
  JointLinears joint_output;  ///< CUDA: of `output` alone; or undefined
  int64_t keys_of = -1;       ///< layer whose keys and values are reused; -1: none
  bool shares_kv = false;     ///< other layers reuse its keys and values
};

/// What mixers are made for, beside the model.
struct MixerOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  kernels::CudaAttention attention = kernels::CudaAttention::kAuto;
};
/// The mixer of a layer, without its weights.   @param arch with the sizes of this rank
std::unique_ptr<Mixer> make_mixer(const spec::ArchSpec& arch, int64_t layer,
                                  const MixerOptions& options);

}  // namespace sftrun::layers
