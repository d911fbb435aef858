#include "sftrun/layers/mixer.h"

#include <string_view>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::layers {

#define SFTRUN_DECLARE_MIXER(name)                                       \
  namespace name {                                                       \
  std::unique_ptr<Mixer> make(const spec::ArchSpec& arch, int64_t layer, \
                              const MixerOptions& options);              \
  }
SFTRUN_MIXERS(SFTRUN_DECLARE_MIXER)
#undef SFTRUN_DECLARE_MIXER

std::unique_ptr<Mixer> make_mixer(const spec::ArchSpec& arch, int64_t layer,
                                  const MixerOptions& options) {
  const std::string_view block = spec::mixer_name(arch, layer);
#define SFTRUN_MAKE_MIXER(name) \
  if (block == #name) return name::make(arch, layer, options);
  SFTRUN_MIXERS(SFTRUN_MAKE_MIXER)
#undef SFTRUN_MAKE_MIXER
  invariant_failed(__FILE__, __LINE__, "every mixer is made by its namespace");
}

}  // namespace sftrun::layers
