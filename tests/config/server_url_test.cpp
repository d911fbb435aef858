#include "sftrun/config/server_url.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sftrun::config {
namespace {

TEST(ServerUrl, FaultsAreNamed) {
  struct Case {
    std::string url, fault;
    UrlEnd end = UrlEnd::kPath;
  };
  const std::vector<Case> cases = {
      {"http://127.0.0.1:8000/v1", ""},
      {"HTTPS://host", ""},
      {"http://[::1]:8000/v1", ""},
      {"http://[::1]/v1", ""},
      {"http://host/v1?key=1", "", UrlEnd::kQuery},
      {"http://host/v1?key=1", "query"},
      {"localhost:8000", "http://"},
      {"ftp://host", "http://"},
      {"http://", "names no host"},
      {"http:///v1", "names no host"},
      {"http://:80/v1", "names no host"},
      {"http://a b/v1", "space"},
      {"http://user:word@host/v1", "password"},
      {"http://host:99999/v1", "65535"},
      {"http://host:0/v1", "65535"},
      {"http://host:/v1", "65535"},
      {"http://host:x/v1", "65535"},
  };
  for (const Case& one : cases) {
    const std::string fault = fault_of_server_url(one.url, one.end);
    if (one.fault.empty())
      EXPECT_EQ(fault, "") << one.url;
    else
      EXPECT_NE(fault.find(one.fault), std::string::npos) << one.url << ": " << fault;
  }
}

TEST(ServerUrl, CredentialsAreLeftOut) {
  EXPECT_EQ(without_credentials("http://user:word@host/v1"), "http://…@host/v1");
  EXPECT_EQ(without_credentials("http://host/v1@x"), "http://host/v1@x");
}

}  // namespace
}  // namespace sftrun::config
