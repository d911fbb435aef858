#include "settings.h"

#include <algorithm>
#include <cstdlib>

namespace stand_in {
namespace {

std::string environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

int number(const char* name, int otherwise) {
  return std::atoi(environment(name, std::to_string(otherwise)).c_str());
}

std::string rank() {
  return environment("RANK", environment("LOCAL_RANK", "0"));
}

/// CUDA_VISIBLE_DEVICES counts its words; which ones does not matter, as all devices are alike.
int visible(int devices) {
  const char* words = std::getenv("CUDA_VISIBLE_DEVICES");
  if (words == nullptr) return devices;
  const std::string text = words;
  if (text.empty() || text[0] == '-') return 0;
  return std::min<int>(devices, 1 + static_cast<int>(std::count(text.begin(), text.end(), ',')));
}

Fault read_fault() {
  Fault fault;
  const std::string text = environment("SFTRUN_STANDIN_NCCL_FAULT", "");
  const size_t at = text.find('@'), colon = text.find(':');
  if (at == std::string::npos || colon == std::string::npos) return fault;
  fault.kind = text.substr(0, at);
  fault.rank = std::atoi(text.substr(at + 1).c_str());
  fault.call = std::atoi(text.substr(colon + 1).c_str());
  fault.seconds = std::atof(environment("SFTRUN_STANDIN_NCCL_FAULT_SECONDS", "0").c_str());
  fault.file = environment("SFTRUN_STANDIN_NCCL_FAULT_FILE", "");
  return fault;
}

Settings read() {
  Settings result;
  result.devices = visible(number("SFTRUN_STANDIN_DEVICES", 1));
  const int sm = number("SFTRUN_STANDIN_SM", 90);
  result.major = sm / 10;
  result.minor = sm % 10;
  result.device_bytes = static_cast<size_t>(number("SFTRUN_STANDIN_MIB", 8192)) << 20;
  if (const std::string log = environment("SFTRUN_STANDIN_LOG", ""); !log.empty())
    result.log = log + "." + rank();
  result.nccl_seconds = number("SFTRUN_STANDIN_NCCL_SECONDS", 60);
  result.rank = std::atoi(rank().c_str());
  result.fault = read_fault();
  result.threads_have_devices = number("SFTRUN_STANDIN_THREADS", 0) != 0;
  result.captures_fail = environment("SFTRUN_STANDIN_CAPTURES_FAIL", "");
  return result;
}

}  // namespace

int Settings::shared_bytes_opt_in() const {
  if (major == 8 && minor == 0) return 163 << 10;
  if (major == 8 || major == 12) return 99 << 10;
  return 227 << 10;
}

int Settings::threads_per_multiprocessor() const {
  return (major == 8 && minor != 0) || major == 12 ? 1536 : 2048;
}

const Settings& settings() {
  static const Settings* const result = new Settings(read());  // outlives every destructor
  return *result;
}

}  // namespace stand_in
