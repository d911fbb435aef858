#pragma once

#include "conversion.h"

namespace sftrun::foreign {

/// `datasets`: a list of {path, type, …}.
void axolotl_datasets(Conversion& conversion, const SourceKey& key);
/// `pretraining_dataset`: a path, or a list of data sets; their texts are read while training.
void axolotl_pretraining(Conversion& conversion, const SourceKey& key);
/// `test_datasets`, a list as `datasets`.
void axolotl_test_datasets(Conversion& conversion, const SourceKey& key);

}  // namespace sftrun::foreign
