#pragma once

#include <optional>
#include <vector>

#include "run_record.h"

namespace sftrun::observe {

/// What the files of a run show that its user should know, the most serious first: values that are
/// not finite, jumps of the loss, slow steps, a validation loss that rises again, idle GPUs, memory
/// above its estimate, warnings in the logs (stragglers, stalls), damaged files.
std::vector<Finding> find_findings(const RunRecord& run);

/// Share of the positions of the packed sequences of each step that hold tokens, 0 to 1; nullopt if
/// the run does not pack, if each step is a whole epoch (which may have fewer sequences than a batch),
/// or if its settings or metrics do not say.
std::optional<double> packed_share(const RunRecord& run);

/// Indices of the values that are far above those before them: by 8 times the usual deviation (1.4826
/// times the median absolute deviation) from the median of the 50 values before, and by a fifth of
/// it. Of several in a row the highest is returned. NaN is skipped.
std::vector<size_t> find_spikes(const std::vector<double>& values);

}  // namespace sftrun::observe
