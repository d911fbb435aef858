#pragma once

#include <string_view>

#include "conversion.h"

/// What several keys of a file say together, after all of them are read.
namespace sftrun::foreign {

/// Takes back what has no use with the file's own tuning.mode, and gives what several keys say
/// together one form.
void settle(Conversion& conversion);
/// Takes back which of `parallel.offload.base` and `params` has no use with this tuning.mode ("": it
/// is not known), and notes where the strategy keeps trained weights on the device.
void settle_weights_on_host(Conversion& conversion, std::string_view mode);

}  // namespace sftrun::foreign
