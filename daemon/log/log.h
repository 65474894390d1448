// Structured log lines on stderr, one line for each event, as text (key=value) or JSON. Uses spdlog.
// Under systemd a text line begins with its priority ("<6>"), which the journal strips.
#ifndef CKPTD_DAEMON_LOG_LOG_H_
#define CKPTD_DAEMON_LOG_LOG_H_

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace ckptd {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// A key and its value. Numbers stay numbers in JSON.
class LogField {
 public:
  LogField(std::string key, std::string value)
      : key_(std::move(key)), value_(std::move(value)), quoted_(true) {}
  LogField(std::string key, const char* value) : LogField(std::move(key), std::string(value)) {}
  LogField(std::string key, std::integral auto value)
      : key_(std::move(key)), value_(std::to_string(value)), quoted_(false) {}

  const std::string& key() const { return key_; }
  const std::string& value() const { return value_; }
  bool quoted() const { return quoted_; }

 private:
  std::string key_;
  std::string value_;
  bool quoted_;
};

// Sets `level` and `format`, which must be valid values of ckptd.config.v1.LogConfig. Call it once, before
// other threads log. Earlier lines are text at level info.
void StartLog(std::string_view level, std::string_view format);

// Changes the level; any thread may call it. Precondition as StartLog's.
void SetLogLevel(std::string_view level);

// Thread-safe. A newline in the message or a value is escaped.
void Log(LogLevel level, std::string_view message, const std::vector<LogField>& fields = {});

// For tests: what Log writes after the time.
// Text: `saved run=runs/1 tag="a b"`. JSON: `"message":"saved","run":"runs/1","tag":"a b"`.
std::string FormatText(std::string_view message, const std::vector<LogField>& fields);
std::string FormatJson(std::string_view message, const std::vector<LogField>& fields);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LOG_LOG_H_
