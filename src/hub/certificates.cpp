#include "certificates.h"

#include <curl/curl.h>

#include "sftrun/core/presence.h"

namespace sftrun::hub {
namespace {

bool libcurl_has_one() {
  const curl_version_info_data* version = curl_version_info(CURLVERSION_NOW);
  const auto is_named = [](const char* path) { return path != nullptr && *path != '\0'; };
  return version->age < CURLVERSION_SEVENTH || is_named(version->cainfo) ||
         is_named(version->capath);
}

}  // namespace

std::string system_ca_bundle() {
  if (libcurl_has_one()) return {};
  // Go, crypto/x509/root_linux.go, has the same list.
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch
                           "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL
                           "/etc/ssl/ca-bundle.pem",              // openSUSE
                           "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL 7 on
                           "/etc/ssl/cert.pem"})                                 // Alpine
    if (leads_to_file(file)) return file;
  return {};
}

}  // namespace sftrun::hub
