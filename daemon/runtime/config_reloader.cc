#include "daemon/runtime/config_reloader.h"

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "daemon/log/log.h"

namespace ckptd {

void ConfigReloader::Reload() {
  if (!load_) return;
  const LoadedConfig loaded = load_();
  for (const std::string& problem : loaded.problems) {
    Log(LogLevel::kError, "SIGHUP: the configuration is not valid, and nothing was changed",
        {{"error", problem}});
  }
  if (!loaded.problems.empty()) return;
  const std::string& level = loaded.config.log().level();
  running_.mutable_log()->set_level(level);
  SetLogLevel(level);
  const std::vector<std::string> others = ChangedFields(running_, loaded.config);
  Log(LogLevel::kInfo, "SIGHUP: read the configuration again", {{"log_level", level}});
  if (others.empty()) return;
  Log(LogLevel::kWarning, "SIGHUP: these fields have changed and take effect when the daemon is restarted",
      {{"fields", absl::StrJoin(others, ",")}});
}

}  // namespace ckptd
