// The commands about what has happened.
#include <algorithm>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/text/history_text.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"
#include "client/ckptctl/text/why.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

// The checkpoint, or the end of its save. NO_CHECKPOINT and UNKNOWN_SAVE are an answer.
absl::Status AddCheckpoint(client::Rpc& rpc, const Context& context, const std::string& name,
                           TagFacts* facts) {
  v1::GetCheckpointRequest request;
  request.set_name(name);
  absl::StatusOr<v1::Checkpoint> checkpoint = rpc.GetCheckpoint(request, CallTimeout(context));
  if (checkpoint.ok()) {
    facts->tag = checkpoint->tag();  // For the tag `latest`.
    facts->checkpoint = *std::move(checkpoint);
    return absl::OkStatus();
  }
  return absl::IsNotFound(checkpoint.status()) ? absl::OkStatus() : checkpoint.status();
}

absl::Status AddDecision(client::Rpc& rpc, const Context& context, TagFacts* facts) {
  if (!facts->checkpoint || facts->checkpoint->level() != v1::COMMITTED) return absl::OkStatus();
  v1::ExplainRetentionRequest request;
  request.set_run(facts->run.name());
  CKPTD_ASSIGN_OR_RETURN(v1::ExplainRetentionResponse explained,
                         rpc.ExplainRetention(request, CallTimeout(context)));
  for (v1::RetentionDecision& decision : *explained.mutable_decisions()) {
    if (decision.sequence() == facts->checkpoint->sequence()) facts->decision = std::move(decision);
  }
  return absl::OkStatus();
}

absl::Status AddTrash(client::Rpc& rpc, const Context& context, TagFacts* facts) {
  if (facts->checkpoint) return absl::OkStatus();
  v1::ListTrashRequest request;
  request.set_run(facts->run.name());
  absl::StatusOr<v1::ListTrashResponse> trash = rpc.ListTrash(request, CallTimeout(context));
  if (ReasonOf(trash.status()) == "SHARED_ROOT_UNSUPPORTED") return absl::OkStatus();
  if (!trash.ok()) return trash.status();
  for (v1::TrashedCheckpoint& trashed : *trash->mutable_checkpoints()) {
    if (trashed.checkpoint().tag() != facts->tag) continue;
    facts->trashed = std::move(trashed);
    break;
  }
  return absl::OkStatus();
}

std::string WhyJson(const std::string& name, const TagFacts& facts, const WhyAnswer& answer) {
  google::protobuf::Struct object;
  auto& fields = *object.mutable_fields();
  fields["name"] = JsonText(name);
  fields["root"] = JsonText(facts.run.path());
  fields["tag"] = JsonText(facts.tag);
  fields["state"] = JsonText(answer.state);
  fields["ok"] = JsonBool(answer.good);
  fields["answer"] = JsonText(answer.answer);
  fields["evidence"] = JsonTexts(answer.evidence);
  fields["next_step"] = JsonText(answer.next_step);
  return ToJson(object);
}

absl::StatusOr<v1::GetHistoryResponse> Get(client::Rpc& rpc, const Context& context, const v1::Run& run,
                                           const HistoryArguments& arguments) {
  v1::GetHistoryRequest request;
  request.set_run(run.name());
  request.set_max_entries(arguments.count);
  request.set_seconds_between_failures(arguments.seconds_between_failures);
  CKPTD_ASSIGN_OR_RETURN(v1::GetHistoryResponse history, rpc.GetHistory(request, CallTimeout(context)));
  if (arguments.since_seconds == 0) return history;
  const int64_t since_us =
      SystemClock().UnixMicros() - static_cast<int64_t>(arguments.since_seconds * 1'000'000);
  auto& entries = *history.mutable_entries();
  const auto older = std::find_if(entries.begin(), entries.end(), [since_us](const v1::HistoryEntry& entry) {
    return UnixMicros(entry.time()) < since_us;
  });
  entries.erase(older, entries.end());
  return history;
}

void Show(const Context& context, const v1::GetHistoryResponse& history, int count) {
  WriteText(context, RenderHistory(history));
  if (!history.outlook().advice().empty())
    *context.out << "advice: " << OneLine(history.outlook().advice()) << "\n";
  if (history.entries_size() == count)
    *context.err << "ckptctl: the newest " << count << " entries; --count shows more\n";
}

std::string JsonLine(const v1::Run& run, const v1::GetHistoryResponse& history) {
  const auto text = [](const google::protobuf::Message& message) {
    std::string line = ToJson(message, /*one_line=*/true);
    line.pop_back();  // The newline.
    return line;
  };
  return absl::StrCat("{\"run\": ", text(JsonText(run.name())), ", \"root\": ", text(JsonText(run.path())),
                      ", \"history\": ", text(history), "}\n");
}

}  // namespace

absl::StatusOr<ExitCode> History(const Context& context, const HistoryArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc->ListRuns(CallTimeout(context)));
  if (!arguments.run.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const v1::Run run, FindRun(runs, arguments.run));
    CKPTD_ASSIGN_OR_RETURN(const v1::GetHistoryResponse history, Get(*rpc, context, run, arguments));
    if (context.json) {
      *context.out << ToJson(history);
    } else {
      Show(context, history, arguments.count);
    }
    return kOk;
  }
  for (const v1::Run& run : runs.runs()) {
    CKPTD_ASSIGN_OR_RETURN(const v1::GetHistoryResponse history, Get(*rpc, context, run, arguments));
    if (context.json) {
      *context.out << JsonLine(run, history);
    } else if (!history.entries().empty()) {
      WriteText(context, absl::StrCat(run.name(), "  ", Printable(run.path()), "\n"));
      Show(context, history, arguments.count);
    }
  }
  return kOk;
}

absl::StatusOr<ExitCode> Why(const Context& context, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc->ListRuns(CallTimeout(context)));
  CKPTD_ASSIGN_OR_RETURN(const std::string full_name, CheckpointName(runs, name));
  const std::string run_name = full_name.substr(0, full_name.find("/checkpoints/"));
  TagFacts facts;
  facts.tag = full_name.substr(full_name.rfind('/') + 1);
  facts.now_us = SystemClock().UnixMicros();
  CKPTD_ASSIGN_OR_RETURN(facts.run, FindRun(runs, run_name));
  CKPTD_RETURN_IF_ERROR(AddCheckpoint(*rpc, context, full_name, &facts));
  CKPTD_RETURN_IF_ERROR(AddDecision(*rpc, context, &facts));
  CKPTD_RETURN_IF_ERROR(AddTrash(*rpc, context, &facts));
  v1::GetHistoryRequest request;
  request.set_run(run_name);
  request.set_tag(facts.tag);
  CKPTD_ASSIGN_OR_RETURN(facts.history, rpc->GetHistory(request, CallTimeout(context)));
  const WhyAnswer answer = AnswerWhy(facts);
  if (context.json) {
    *context.out << WhyJson(full_name, facts, answer);
  } else {
    WriteText(context, RenderWhy(facts, answer));
  }
  return answer.good ? kOk : kNotSo;
}

}  // namespace ckptd::ctl
