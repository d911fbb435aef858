#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// A teacher beside the student (`train.teacher` names a model), for the plan of the student's memory.
struct TeacherUse {
  spec::ArchSpec arch;
  std::map<std::string, uint64_t> stored;  ///< as StoredBytes
  config::TuningConfig form;               ///< config::form_of_teacher
  int64_t adapter_values = 0;              ///< of its adapter; 0: it has none
};

}  // namespace sftrun::plan
