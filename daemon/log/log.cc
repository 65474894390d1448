#include "daemon/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace ckptd {
namespace {

struct Logger {
  std::shared_ptr<spdlog::logger> spd;
  bool json = false;
  bool journal = false;
};

// Whether stderr is the journal itself. JOURNAL_STREAM alone may come from a parent process.
bool StderrIsJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &info) != 0) return false;
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) == stream;
}

void SetPattern(Logger& logger) {
  const char* time = "%Y-%m-%dT%H:%M:%S.%eZ";
  std::string pattern = std::string(time) + " %l %v";
  if (logger.json) pattern = std::string("{\"time\":\"") + time + "\",\"level\":\"%l\",%v}";
  if (logger.journal && !logger.json)
    pattern = "%v";  // The priority must come first; the journal adds the time.
  logger.spd->set_pattern(pattern, spdlog::pattern_time_type::utc);
}

// Never destroyed, because threads may log until the process ends.
Logger& TheLogger() {
  static Logger& logger = *[] {
    auto* made = new Logger;
    made->spd = std::make_shared<spdlog::logger>("ckptd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->spd->set_level(spdlog::level::info);
    made->journal = StderrIsJournal();
    SetPattern(*made);
    return made;
  }();
  return logger;
}

spdlog::level::level_enum SpdLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* JournalPriority(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "<7>";
    case LogLevel::kInfo:
      return "<6>";
    case LogLevel::kWarning:
      return "<4>";
    case LogLevel::kError:
      return "<3>";
  }
  return "<3>";
}

// Appends the text in quotes, escaped as in JSON. Bytes above 0x7f pass unchanged: paths and messages are
// UTF-8.
void AppendQuoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    } else {
      out += c;
    }
  }
  out += '"';
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '\\' || c == '=' || c == 0x7f) return true;
  }
  return false;
}

}  // namespace

std::string FormatText(std::string_view message, const std::vector<LogField>& fields) {
  std::string out;
  for (const char c : message) out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  for (const LogField& field : fields) {
    out += ' ';
    out += field.key();
    out += '=';
    if (field.quoted() && NeedsQuotes(field.value())) {
      AppendQuoted(out, field.value());
    } else {
      out += field.value();
    }
  }
  return out;
}

std::string FormatJson(std::string_view message, const std::vector<LogField>& fields) {
  std::string out = "\"message\":";
  AppendQuoted(out, message);
  for (const LogField& field : fields) {
    out += ',';
    AppendQuoted(out, field.key());
    out += ':';
    if (field.quoted()) {
      AppendQuoted(out, field.value());
    } else {
      out += field.value();
    }
  }
  return out;
}

void StartLog(std::string_view level, std::string_view format) {
  Logger& logger = TheLogger();
  logger.spd->set_level(spdlog::level::from_str(std::string(level)));
  logger.json = format == "json";
  SetPattern(logger);
}

void SetLogLevel(std::string_view level) {
  TheLogger().spd->set_level(spdlog::level::from_str(std::string(level)));
}

void Log(LogLevel level, std::string_view message, const std::vector<LogField>& fields) {
  Logger& logger = TheLogger();
  if (!logger.spd->should_log(SpdLevel(level))) return;
  std::string line = logger.json ? FormatJson(message, fields) : FormatText(message, fields);
  if (logger.journal && !logger.json) line.insert(0, JournalPriority(level));
  logger.spd->log(SpdLevel(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace ckptd
