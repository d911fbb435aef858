#include "http.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>

#include "certificates.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "url.h"

namespace sftrun::hub {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRedirects = 10;
constexpr long kReceiveBytes = 512 * 1024;  // the maximum of libcurl
constexpr size_t kMaxErrorBody = 16384, kMaxHeaders = 300, kMaxHeaderBytes = 300'000;
constexpr double kMaxErrorBodyS = 5;

/// Initialises libcurl once per process.
void require_curl() {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  SFTRUN_CHECK(initialised == CURLE_OK);
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

void append(HeaderList& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  if (longer == nullptr) throw std::bad_alloc();
  list.release();
  list.reset(longer);
}

std::string lower(std::string_view text) {
  std::string copy(text);
  for (char& c : copy) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return copy;
}

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

bool is_redirect(long status) {
  constexpr long kMoved = 301, kFound = 302, kSeeOther = 303, kTemporary = 307, kPermanent = 308;
  return status == kMoved || status == kFound || status == kSeeOther || status == kTemporary ||
         status == kPermanent;
}

/// Errors that a retry does not fix.
bool is_lasting(CURLcode code) {
  switch (code) {
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ENGINE_NOTFOUND:
      return true;
    default:
      return false;
  }
}

/// Whether no connection was made. This includes timeouts, because only connecting has one.
bool is_unreachable(CURLcode code) {
  return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
         code == CURLE_COULDNT_CONNECT || code == CURLE_OPERATION_TIMEDOUT;
}

/// libcurl leaves SIGPIPE to its caller, and OpenSSL writes to sockets that the other end has
/// closed. The signal goes to the writing thread, so it is blocked here, and removed if it was
/// raised.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec at_once{};
    if (sigismember(&before_, SIGPIPE) == 0) {
      while (::sigtimedwait(&pipe_, nullptr, &at_once) > 0) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

}  // namespace

/// One HTTP request: libcurl's callbacks and the response that they collect.
class HttpClient::Exchange {
 public:
  Exchange(const Settings& settings, const ShouldStop& should_stop, const Request& request,
           const BodySink& sink)
      : settings_(settings), should_stop_(should_stop), request_(request), sink_(sink) {
    response_.url = request.url;
  }

  Response perform(CURL* curl) {
    prepare(curl);
    const CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response_.status);
    if (failure_) std::rethrow_exception(failure_);
    if (code != CURLE_OK && !has_enough_) fail(code);
    if (response_.ok() && !began_) begin();
    if (is_redirect(response_.status))
      response_.redirect_url = absolute_url(response_.header("location"), response_.url);
    return std::move(response_);
  }

 private:
  void prepare(CURL* curl) {
    curl_ = curl;
    set(CURLOPT_URL, request_.url.c_str());
#if LIBCURL_VERSION_NUM >= 0x075500  // 7.85; Ubuntu 22.04 has 7.81
    set(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    set(CURLOPT_NOBODY, request_.head ? 1L : 0L);
    if (request_.body) {
      set(CURLOPT_POST, 1L);
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body->size()));
      set(CURLOPT_POSTFIELDS, request_.body->data());  // libcurl does not copy it
      append(lines_, "Expect:");                       // without a round trip before the body
    }
    if (request_.upload) prepare_upload();
    if (request_.only_once) set(CURLOPT_FRESH_CONNECT, 1L);
    set(CURLOPT_NOSIGNAL, 1L);
    // libcurl refuses this after an early failure of a transfer; then the previous size remains.
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kReceiveBytes);
    set(CURLOPT_USERAGENT, "sftrun");
    set(CURLOPT_CONNECTTIMEOUT_MS, std::lround(settings_.connect_timeout_s * 1000));
    set(CURLOPT_ERRORBUFFER, error_text_);
    const std::string bundle =
        settings_.ca_bundle.empty() ? system_ca_bundle() : settings_.ca_bundle;
    if (!bundle.empty()) set(CURLOPT_CAINFO, bundle.c_str());  // libcurl copies it
    // A compressed body would not have the file's length.
    append(lines_, "Accept-Encoding: identity");
    for (const std::string& line : request_.headers) append(lines_, line);
    if (!settings_.token.empty() && origin_of(request_.url) == origin_of(settings_.endpoint))
      append(lines_,
             fmt::format("Authorization: {} {}", settings_.token_scheme, settings_.token.reveal()));
    set(CURLOPT_HTTPHEADER, lines_.get());
    set(CURLOPT_HEADERFUNCTION, &on_header);
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_WRITEFUNCTION, &on_body);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &on_tick);
    set(CURLOPT_XFERINFODATA, this);
    last_byte_at_ = Clock::now();
  }

  void prepare_upload() {
    set(CURLOPT_UPLOAD, 1L);  // PUT
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.upload->size));
    set(CURLOPT_READFUNCTION, &on_read);
    set(CURLOPT_READDATA, this);
    set(CURLOPT_SEEKFUNCTION, &on_seek);
    set(CURLOPT_SEEKDATA, this);
    append(lines_, "Expect:");
  }

  template <class Value>
  void set(CURLoption option, Value value) {
    SFTRUN_CHECK(curl_easy_setopt(curl_, option, value) == CURLE_OK);
  }

  [[noreturn]] void fail(CURLcode code) const {
    const std::string detail = error_text_[0] != '\0' ? error_text_ : curl_easy_strerror(code);
    const std::string what =
        stalled_   ? fmt::format("no data was {} for {:g} s", is_sending_ ? "taken" : "received",
                                 stall_s())
        : is_late_ ? fmt::format("the response did not end within {:g} s", *request_.max_s)
                   : printable(detail, settings_);
    if (!is_lasting(code)) {
      TransientFailure failure(what);
      failure.unreachable = is_unreachable(code) || (stalled_ && response_.headers.empty());
      throw failure;
    }
    throw CommError(what, shown_url(request_.url, settings_),
                    "check HF_ENDPOINT, proxies, and certificates (SSL_CERT_FILE)");
  }

  void begin() {
    began_ = true;
    if (sink_.begin) sink_.begin(response_);
  }

  void take_header(std::string_view line) {
    header_bytes_ += line.size();
    // After 100 Continue or a proxy's response
    if (line.starts_with("HTTP/")) response_.headers.clear();
    if (response_.headers.size() >= kMaxHeaders || header_bytes_ > kMaxHeaderBytes)
      throw TransientFailure("the response has too many headers");
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    response_.headers[lower(line.substr(0, colon))] = std::string(trim(line.substr(colon + 1)));
  }

  /// @return false: no more is needed
  bool take_body(std::span<const char> bytes) {
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &response_.status);
    if (!response_.ok()) {
      const size_t room = kMaxErrorBody - std::min(kMaxErrorBody, response_.error_body.size());
      response_.error_body.append(bytes.data(), std::min(room, bytes.size()));
      if (!error_since_) error_since_ = Clock::now();
      has_enough_ = bytes.size() >= room || is_redirect(response_.status);
      return !has_enough_;
    }
    if (!began_) begin();
    if (sink_.write) sink_.write(bytes);
    return true;
  }

  size_t give_body(std::span<char> into) {
    const uint64_t left = request_.upload->size - sent_;
    is_sending_ = left > 0;
    if (left == 0) return 0;
    const size_t copied = request_.upload->read(
        sent_, into.first(static_cast<size_t>(std::min<uint64_t>(left, into.size()))));
    sent_ += copied;
    return copied;
  }

  /// A stall is a time without receiving or sending a byte, whatever the mean speed was.
  bool may_go_on() {
    if (should_stop_ && should_stop_()) return false;
    stalled_ = seconds_since(last_byte_at_) > stall_s() + connecting_s();
    is_late_ = request_.max_s && seconds_since(began_at_) > *request_.max_s;
    has_enough_ |= error_since_ && seconds_since(*error_since_) > kMaxErrorBodyS;
    return !stalled_ && !is_late_ && !has_enough_;
  }
  double stall_s() const {
    return request_.stall_s.value_or(settings_.stall_timeout_s);
  }
  double connecting_s() const {
    return response_.headers.empty() ? settings_.connect_timeout_s : 0;
  }

  /// Exceptions must not pass through C code: they are stored here and rethrown by `perform`.
  template <class Body>
  bool guarded(Body&& body) noexcept {
    try {
      body();
      return true;
    } catch (...) {
      failure_ = std::current_exception();
      return false;
    }
  }

  static size_t on_header(const char* data, size_t size, size_t count, void* self) {
    auto* exchange = static_cast<Exchange*>(self);
    exchange->last_byte_at_ = Clock::now();
    const bool taken = exchange->guarded([&] { exchange->take_header({data, size * count}); });
    return taken ? size * count : 0;
  }
  static size_t on_body(const char* data, size_t size, size_t count, void* self) {
    auto* exchange = static_cast<Exchange*>(self);
    exchange->last_byte_at_ = Clock::now();
    bool goes_on = false;
    exchange->guarded([&] { goes_on = exchange->take_body({data, size * count}); });
    return goes_on ? size * count : 0;
  }
  static size_t on_read(char* into, size_t size, size_t count, void* self) {
    auto* exchange = static_cast<Exchange*>(self);
    exchange->last_byte_at_ = Clock::now();
    size_t copied = CURL_READFUNC_ABORT;
    exchange->guarded([&] { copied = exchange->give_body({into, size * count}); });
    return copied;
  }
  /// libcurl sends the body again over a new connection if the server had closed an old one.
  static int on_seek(void* self, curl_off_t offset, int origin) {
    if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Exchange*>(self)->sent_ = static_cast<uint64_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
  static int on_tick(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto* exchange = static_cast<Exchange*>(self);
    bool go_on = false;
    const bool asked = exchange->guarded([&] {
      go_on = exchange->may_go_on();
      throw_if_stopped(exchange->should_stop_);
    });
    return asked && go_on ? 0 : 1;
  }

  const Settings& settings_;
  const ShouldStop& should_stop_;
  const Request& request_;
  const BodySink& sink_;
  CURL* curl_ = nullptr;
  HeaderList lines_;
  Response response_;
  bool began_ = false, stalled_ = false, is_late_ = false, is_sending_ = false;
  uint64_t sent_ = 0;        ///< bytes of `upload`
  bool has_enough_ = false;  ///< of an error's body: the transfer is ended on purpose
  size_t header_bytes_ = 0;  ///< of all responses to the request
  Clock::time_point began_at_ = Clock::now(), last_byte_at_;
  std::optional<Clock::time_point> error_since_;
  std::exception_ptr failure_;
  char error_text_[CURL_ERROR_SIZE] = {};
};

std::string Response::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

void HttpClient::FreeShare::operator()(void* share) const {
  curl_share_cleanup(share);
}

HttpClient::HttpClient(const Settings& settings, ShouldStop should_stop)
    : settings_(settings), should_stop_(std::move(should_stop)) {
  require_curl();
  share_.reset(curl_share_init());
  SFTRUN_CHECK(share_ != nullptr);
  for (const curl_lock_data what :
       {CURL_LOCK_DATA_CONNECT, CURL_LOCK_DATA_DNS, CURL_LOCK_DATA_SSL_SESSION})
    // What cannot be shared is created per request
    curl_share_setopt(share_.get(), CURLSHOPT_SHARE, what);
}
HttpClient::~HttpClient() = default;

Response HttpClient::send_once(const Request& request, const BodySink& sink) {
  throw_if_stopped(should_stop_);
  const WithoutSigpipe without_sigpipe;
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  SFTRUN_CHECK(curl != nullptr);
  curl_easy_setopt(curl.get(), CURLOPT_SHARE, share_.get());
  return Exchange(settings_, should_stop_, request, sink).perform(curl.get());
}

Response HttpClient::send(Request request, const BodySink& sink,
                          const std::function<bool(const Response&)>& stop_at) {
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    Response response = send_once(request, sink);
    if (response.redirect_url.empty() || (stop_at && stop_at(response))) return response;
    const bool downgrade = request.url.starts_with("https://") &&
                           !origin_of(response.redirect_url).starts_with("https://");
    if (downgrade || origin_of(response.redirect_url).empty()) {
      throw CommError(
          fmt::format("a redirect to {} is not followed",
                      downgrade ? "an unencrypted host" : "an address that is not http(s)"),
          shown_url(request.url, settings_), "check HF_ENDPOINT and proxies");
    }
    request.url = response.redirect_url;
  }
  throw CommError(fmt::format("redirected more than {} times", kMaxRedirects),
                  shown_url(request.url, settings_), "check HF_ENDPOINT and proxies");
}

std::string printable(std::string_view text, const Settings& settings) {
  constexpr size_t kLongest = 300;
  std::string line(text);
  const std::string& token = settings.token.reveal();
  for (size_t at = 0; !token.empty() && (at = line.find(token, at)) != std::string::npos;)
    line.replace(at, token.size(), "***");
  if (!is_valid_utf8(line)) std::erase_if(line, [](char c) { return (c & 0x80) != 0; });
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  if (line.size() > kLongest) {
    line = std::string(utf8_prefix(line, kLongest)) + "…";
  }
  return std::string(trim(line));
}

std::string shown_url(const std::string& url, const Settings& settings) {
  return printable(shown_url(url), settings);
}

}  // namespace sftrun::hub
