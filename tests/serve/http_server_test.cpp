#include "sftrun/serve/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

namespace sftrun::serve {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""h;

/// A connection to a server on this machine.
class Client {
 public:
  explicit Client(const HttpServer& server, int wait_s = 20)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval most{.tv_sec = wait_s, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ =
        ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), is_connected_(other.is_connected_) {}
  Client& operator=(Client&&) = delete;

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  bool is_connected() const { return is_connected_; }
  void send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }
  /// The status of the answer; 0: none came, -1: none within the time to wait.
  int status() {
    std::string text(64, '\0');
    const ssize_t size = ::recv(socket_, text.data(), text.size(), 0);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return -1;
    return size > 12 ? std::stoi(text.substr(9, 3)) : 0;
  }
  /// What the server sends until it has sent `end` so often, or closes the connection.
  std::string read_until(std::string_view end, int count) {
    std::string text, part(1024, '\0');
    for (int found = 0; found < count;) {
      const ssize_t size = ::recv(socket_, part.data(), part.size(), 0);
      if (size <= 0) break;
      text.append(part, 0, static_cast<size_t>(size));
      found = 0;
      for (size_t at = 0; (at = text.find(end, at)) != std::string::npos; at += end.size()) ++found;
    }
    return text;
  }

 private:
  int socket_;
  bool is_connected_ = false;
};

std::string head(size_t length, const std::string& more = "") {
  return "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
         std::to_string(length) + "\r\n" + more + "\r\n";
}
const std::string kBegun = "GET / HTTP/1.1\r\nX: ";
const std::string kWhole = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

HttpResponse length_of_body(HttpRequest& request) {
  return {.body = std::to_string(request.body.size())};
}

TEST(HttpServerTest, WhatTheHeadersForbidIsRefusedWithoutItsBody) {
  std::atomic<int> num_handled{0};
  const HttpServer server(
      {.port = 0, .max_bodies_bytes = 1 << 20},
      [&](HttpRequest& request) {
        ++num_handled;
        return length_of_body(request);
      },
      [](const HttpRequest& request) -> std::optional<HttpResponse> {
        EXPECT_TRUE(request.body.empty());
        if (request.header("authorization") == "yes") return std::nullopt;
        return HttpResponse{.status = 401};
      });
  Client stranger(server), waiting(server), known(server);
  const std::string body(8 << 20, 'a');  // more than all bodies together may take
  stranger.send(head(body.size()) + body);
  EXPECT_EQ(stranger.status(), 401);
  waiting.send(head(body.size(), "Expect: 100-continue\r\n"));
  EXPECT_EQ(waiting.status(), 401) << "before a body is sent";
  EXPECT_EQ(num_handled, 0);
  known.send(head(3, "Authorization: yes\r\n") + "abc");
  EXPECT_EQ(known.status(), 200);
}

TEST(HttpServerTest, TheMemoryOfAllBodiesTogetherIsLimited) {
  const HttpServer server({.port = 0, .max_bodies_bytes = 4 << 20}, length_of_body);
  const std::string body(2 << 20, 'a');
  auto first = std::make_unique<Client>(server);
  first->send(head(body.size()) + body.substr(1));
  std::this_thread::sleep_for(300ms);
  Client second(server), small(server);
  second.send(head(body.size()) + body);
  EXPECT_EQ(second.status(), 503);
  small.send(head(1000) + body.substr(0, 1000));
  EXPECT_EQ(small.status(), 200) << "short requests are answered meanwhile";
  first->send("a");
  EXPECT_EQ(first->status(), 200);
  int status = 503;
  for (int i = 0; status == 503 && i < 200; ++i) {  // free soon after the answer was sent
    Client third(server);
    third.send(head(body.size()) + body);
    status = third.status();
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(status, 200) << "the memory of the first is free again";
}

TEST(HttpServerTest, ADroppedBodyMakesRoomWhileItsAnswerIsMade) {
  std::atomic<bool> is_first{true}, goes_on{false};
  const HttpServer server({.port = 0, .max_bodies_bytes = 4 << 20}, [&](HttpRequest& request) {
    if (is_first.exchange(false)) {
      request.drop_body();
      while (!goes_on) std::this_thread::sleep_for(10ms);
    }
    return length_of_body(request);
  });
  const std::string body(2 << 20, 'a');
  Client first(server), second(server);
  first.send(head(body.size()) + body);
  while (is_first) std::this_thread::sleep_for(10ms);
  second.send(head(body.size()) + body);
  EXPECT_EQ(second.status(), 200);
  goes_on = true;
  EXPECT_EQ(first.status(), 200);
}

TEST(HttpServerTest, ClientsBeyondTheLimitWait) {
  const HttpServer server({.port = 0, .max_connections = 4, .patience = 1h}, length_of_body);
  std::vector<Client> silent, waiting;
  for (int i = 0; i < 4; ++i) {
    silent.emplace_back(server);
    silent.back().send(kBegun);
  }
  std::this_thread::sleep_for(300ms);
  for (int i = 0; i < 10; ++i) {
    waiting.emplace_back(server);
    ASSERT_TRUE(waiting.back().is_connected());
    waiting.back().send(kWhole);
  }
  Client impatient(server, 1);
  impatient.send(kWhole);
  EXPECT_EQ(impatient.status(), -1) << "waits";
  silent[2].close();
  for (Client& client : waiting) EXPECT_EQ(client.status(), 200);
}

TEST(HttpServerTest, SlowClientsGiveWayWhereOthersWait) {
  std::atomic<bool> goes_on{false};
  const HttpServer server({.port = 0, .max_connections = 3, .patience = 500ms},
                          [&](HttpRequest& request) {
                            while (request.body == "wait" && !goes_on)
                              std::this_thread::sleep_for(10ms);
                            return length_of_body(request);
                          });
  Client answered(server);
  answered.send(head(4) + "wait");
  Client of_header(server), of_body(server);
  of_header.send(kBegun);
  of_body.send(head(100) + "a");
  for (int i = 0; i < 3; ++i) {
    Client other(server);
    other.send(kWhole);
    of_header.send("a");  // slow, not silent
    EXPECT_EQ(other.status(), 200) << i;
  }
  EXPECT_EQ(of_header.status(), 0) << "the slowest has lost its connection";
  goes_on = true;
  EXPECT_EQ(answered.status(), 200) << "one that waits for its answer has not";
}

TEST(HttpServerTest, AClientThatDoesNotReadItsAnswerGivesWay) {
  const HttpServer server({.port = 0, .max_connections = 1, .patience = 200ms},
                          [](HttpRequest& request) {
                            HttpResponse response;
                            if (request.method == "POST") response.body.assign(64 << 20, 'a');
                            return response;
                          });
  Client deaf(server), other(server);
  deaf.send(head(0));
  std::this_thread::sleep_for(300ms);
  other.send(kWhole);
  EXPECT_EQ(other.status(), 200);
}

TEST(HttpServerTest, ARequestMustBeCompleteInTime) {
  const HttpServer server({.port = 0, .max_request_time = 300ms}, length_of_body);
  Client slow(server);
  slow.send(head(100));
  for (int i = 0; i < 8; ++i) {
    slow.send("a");
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_EQ(slow.status(), 0);
}

/// The status of a request for a target; 200 if its path and host are those wanted.
int status_of(const std::string& target, const std::string& host, const std::string& path,
              const std::string& seen_host) {
  const HttpServer server({.port = 0}, [&](HttpRequest& request) {
    const bool is_right = request.path == path && request.header("host") == seen_host;
    return HttpResponse{.status = is_right ? 200 : 404};
  });
  Client client(server);
  client.send("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  return client.status();
}

TEST(HttpServerTest, ATargetMayBeInAbsoluteForm) {
  const auto status = [](const std::string& target, const std::string& path,
                         const std::string& host) {
    return status_of(target, "elsewhere", path, host);
  };
  EXPECT_EQ(status("http://localhost:8000/v1/models", "/v1/models", "localhost:8000"), 200);
  EXPECT_EQ(status("HTTPS://[::1]/v1/models?a=/b", "/v1/models", "[::1]"), 200);
  EXPECT_EQ(status("http://127.0.0.1", "/", "127.0.0.1"), 200);
  EXPECT_EQ(status("/http://a/b", "/http://a/b", "elsewhere"), 200) << "a path";
  for (const char* target :
       {"http:///v1/models", "http://a:b/v1", "http://user@a/v1", "http://[a/"})
    EXPECT_EQ(status(target, "", ""), 400) << target;
}

TEST(HttpServerTest, AnEscapedControlCharacterIsRefused) {
  const auto status = [](const std::string& target, const std::string& path) {
    return status_of(target, "localhost", path, "localhost");
  };
  EXPECT_EQ(status("/v1/models/a%2Fb%20%e6%97%a5?c=%00", "/v1/models/a/b \xe6\x97\xa5"), 200);
  EXPECT_EQ(status("/100%/%zz%4", "/100%/%zz%4"), 200) << "no escapes";
  for (const char* target :
       {"/health%00", "/health%00/more", "/%0d%0aa", "/%1F", "/%7f", "http://localhost/a%00"})
    EXPECT_EQ(status(target, ""), 400) << target;
}

TEST(HttpServerTest, AHostIsANameWithOrWithoutAPort) {
  for (const char* host : {"localhost", "a.b-c_d:80", "127.0.0.1:8000", "[::1]:8000", "[::1]", ""})
    EXPECT_EQ(status_of("/", host, "/", host), 200) << host;
  for (const char* host : {"localhost:a", "localhost:1:2", "a b", "localhost/x", "me@localhost",
                           "[::1", "[::1]x", ":80", "[x]"})
    EXPECT_EQ(status_of("/", host, "", ""), 400) << host;
}

TEST(HttpServerTest, ABodyMayBeInChunksAlone) {
  const auto status = [](const std::string& coding) {
    const HttpServer server({.port = 0}, [](HttpRequest& request) {
      return HttpResponse{.status = request.body == "abc" ? 200 : 404};
    });
    Client client(server);
    client.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + coding +
                "\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    return client.status();
  };
  EXPECT_EQ(status("chunked"), 200);
  EXPECT_EQ(status("Chunked"), 200);
  EXPECT_EQ(status("gzip, chunked"), 501);
  EXPECT_EQ(status("gzip"), 501);
}

TEST(HttpServerTest, AConnectionHasOneRequestAfterTheOther) {
  const HttpServer server({.port = 0}, [](HttpRequest& request) {
    return HttpResponse{.body = "<" + request.path + request.body + ">"};
  });
  const auto request = [](const std::string& path, const std::string& body) {
    return "POST " + path +
           " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  };
  Client client(server);
  client.send(request("/1", "a") + request("/2", "") + request("/3", "c"));  // pipelined
  std::string text = client.read_until(">", 3);
  client.send(request("/4", "d"));
  text += client.read_until(">", 1);
  size_t at = 0;
  for (const char* body : {"</1a>", "</2>", "</3c>", "</4d>"}) {
    at = text.find(body, at);
    ASSERT_NE(at, std::string::npos) << body << " in " << text;
  }
}

TEST(HttpServerTest, ARequestMayComeByteByByte) {
  const HttpServer server({.port = 0}, [](HttpRequest& request) {
    return HttpResponse{.body = "<" + request.header("x-name") + request.body + ">"};
  });
  Client client(server);
  for (const char byte : head(3, "X-Name: value\r\n") + "abc") client.send({&byte, 1});
  EXPECT_NE(client.read_until(">", 1).find("<valueabc>"), std::string::npos);
}

TEST(HttpServerTest, MalformedRequestsDoNotReachTheHandler) {
  std::atomic<int> num_handled{0};
  const HttpServer server({.port = 0}, [&](HttpRequest& request) {
    ++num_handled;
    return length_of_body(request);
  });
  for (const std::string& request :
       {std::string("nothing that HTTP has\r\n\r\n"), "GET\r\n\r\n" + std::string(),
        "GET / HTTP/1.1\r\nno colon\r\n\r\n" + std::string(),
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n" + std::string(),
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n" +
            std::string(),
        "GET / HTTP/1.1\r\nX: " + std::string(1 << 20, 'x') + "\r\n\r\n"}) {
    Client client(server);
    client.send(request);
    const int status = client.status();
    EXPECT_TRUE(status == 0 || (status >= 400 && status < 600))
        << status << " for " << request.substr(0, 60);
  }
  EXPECT_EQ(num_handled, 0);
  Client sound(server);
  sound.send(kWhole);
  EXPECT_EQ(sound.status(), 200);
}

TEST(HttpServerTest, ALongHeadIsRefusedAsOtherRequestsAre) {
  const HttpServer server({.port = 0}, length_of_body);
  const auto reply_to = [&](const std::string& target, const std::string& headers) {
    Client client(server);
    client.send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                headers + "\r\n");
    return client.read_until("}}\n", 1);
  };
  const auto expect = [](const std::string& reply, const std::string& status) {
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 " + status + " ")) << reply;
    EXPECT_NE(reply.find("application/json"), std::string::npos) << reply;
    EXPECT_NE(reply.find("\"message\": \"the "), std::string::npos) << reply;
  };
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "X" + std::to_string(i) + ": some value\r\n";
  expect(reply_to("/", "X: " + std::string(33 << 10, 'x') + "\r\n"), "431");
  expect(reply_to("/", "X: " + std::string(100 << 10, 'x') + "\r\n"), "431");
  expect(reply_to("/", many), "431");
  expect(reply_to("/" + std::string(40 << 10, 'x'), ""), "414");
  EXPECT_TRUE(
      reply_to("/", "X: " + std::string(31 << 10, 'x') + "\r\n").starts_with("HTTP/1.1 200 "));
}

TEST(HttpServerTest, ABodyAboveTheLimitIsRefused) {
  const HttpServer server({.port = 0, .max_body_bytes = 1000}, length_of_body);
  Client at_most(server), above(server), in_chunks(server);
  at_most.send(head(1000) + std::string(1000, 'a'));
  EXPECT_EQ(at_most.status(), 200);
  above.send(head(1001) + std::string(1001, 'a'));
  const std::string reply = above.read_until("}}", 1);
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 413 ")) << reply;
  EXPECT_NE(reply.find("a larger --max-request-size"), std::string::npos) << reply;
  in_chunks.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
                 std::string(1001, 'a') + "\r\n0\r\n\r\n");
  EXPECT_EQ(in_chunks.status(), 413);
}

TEST(HttpServerTest, ItEndsWhileClientsWait) {
  auto server = std::make_unique<HttpServer>(HttpServer::Options{.port = 0, .max_connections = 1},
                                             length_of_body);
  Client silent(*server), waiting(*server);
  silent.send(kBegun);
  waiting.send(kWhole);
  std::this_thread::sleep_for(100ms);
  server.reset();
  EXPECT_EQ(silent.status(), 0);
  EXPECT_EQ(waiting.status(), 0);
}

}  // namespace
}  // namespace sftrun::serve
