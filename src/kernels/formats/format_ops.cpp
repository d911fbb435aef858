#include "format_ops.h"

namespace sftrun::kernels {

// to_array: a missing entry is an error of the compiler.
constinit const std::array<const FormatOps*, kQuantFormats.size()> kFormatOps =
    std::to_array<const FormatOps*>({&kNf4Ops, &kFp4Ops, &kFp8Ops, &kInt8Ops, &kGgmlOps});

}  // namespace sftrun::kernels
