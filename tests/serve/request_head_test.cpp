#include "../../src/serve/request_head.h"

#include <gtest/gtest.h>

namespace sftrun::serve {
namespace {

using std::string_literals::operator""s;

/// "path" or "path of host"; "none" for a target that is refused.
std::string shown(const std::string& target) {
  const auto found = parse_target(target);
  if (!found) return "none";
  return found->path + (found->host ? " of " + *found->host : "");
}

TEST(RequestTargets, AreDecodedPaths) {
  EXPECT_EQ(shown("/v1/models"), "/v1/models");
  EXPECT_EQ(shown("/a%2Fb%20c%e6%97%a5"), "/a/b c\xE6\x97\xA5");
  EXPECT_EQ(shown("/%25%32%35"), "/%25") << "decoded once";
  EXPECT_EQ(shown(""), "");
  EXPECT_EQ(shown("*"), "*") << "another form becomes a path";
}

TEST(RequestTargets, OtherUsesOfThePercentSignStay) {
  for (const char* path : {"/%", "/%4", "/%zz", "/%4z", "/%-1", "/%+1", "/% 1", "/100%/x"})
    EXPECT_EQ(shown(path), path);
}

TEST(RequestTargets, ControlCharactersAreRefused) {
  for (const auto& target :
       {"/a%00"s, "/a%0a"s, "/%1f"s, "/%7F"s, "/a\0b"s, "/a\nb"s, "/\x7f"s, "http://host/%0d"s})
    EXPECT_EQ(shown(target), "none") << target;
  EXPECT_EQ(shown("/%80%ff"), "/\x80\xFF") << "no control characters";
}

TEST(RequestTargets, InAbsoluteFormHaveAHost) {
  EXPECT_EQ(shown("http://host:80/a/b"), "/a/b of host:80");
  EXPECT_EQ(shown("HTTPS://[::1]:8000/"), "/ of [::1]:8000");
  EXPECT_EQ(shown("http://host"), "/ of host");
  EXPECT_EQ(shown("ftp://host/a"), "ftp://host/a") << "a path";
  for (const char* target : {"http://", "http:///a", "http://a b/", "http://me@host/",
                             "http://host:80:80/", "http://[::1/", "http://:80/"})
    EXPECT_EQ(shown(target), "none") << target;
}

TEST(HostNames, MayHaveAPort) {
  for (const char* host : {"", "localhost", "a.b-c_d", "a:", "a:80", "127.0.0.1:8000", "[::1]",
                           "[::1]:80", "[fe80::1]", "x%20y", "a~!$&'()*+,;="})
    EXPECT_TRUE(is_host(host)) << host;
  for (const char* host : {":80", "a:b", "a:80x", "a:1:2", "::1", "[::1", "[]", "[::1]x", "[g::1]",
                           "a b", "a/b", "a@b", "a?b", "\xE6\x97\xA5", "a\t"})
    EXPECT_FALSE(is_host(host)) << host;
}

TEST(MediaTypes, HaveATypeAndPerhapsACharset) {
  const auto found = [](const char* header) {
    const MediaType type = parse_media_type(header);
    return type.type + "|" + type.charset;
  };
  EXPECT_EQ(found("application/json"), "application/json|");
  EXPECT_EQ(found(" Application/JSON ; Charset=\"UTF-8\" "), "application/json|utf-8");
  EXPECT_EQ(found("text/plain;boundary=x;charset=latin1"), "text/plain|latin1");
  EXPECT_EQ(found("text/plain;charset="), "text/plain|");
  EXPECT_EQ(found("charset=utf-8"), "charset=utf-8|utf-8") << "the type is what comes first";
  EXPECT_EQ(found(""), "|");
  EXPECT_EQ(found(";;"), "|");
}

}  // namespace
}  // namespace sftrun::serve
