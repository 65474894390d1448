#include "client/ckptctl/text/why.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ckptctl/text/history_text.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {
namespace {

struct Step {
  std::string_view reason, what;
};

// What to do when a save has ended for a reason. docs/protocol.md has all reasons.
constexpr std::array<Step, 16> kSteps = {{
    {"RANKS_MISSING",
     "look at the log and the stack of the ranks that are named; if only some ranks save, name them"},
    {"SESSION_LOST", "look at why that trainer ended: its log, and the kernel's for the OOM killer"},
    {"STAGED_LOST",
     "save again; run the daemon under its unit, so that the next one inherits what was sealed"},
    {"ADMISSION_TIMEOUT",
     "see who holds the memory with ckptctl sessions; save less often, or raise pool.bytes"},
    {"SKIPPED", "nothing, if it is rare; else save less often, or raise pool.bytes"},
    {"SUPERSEDED", "nothing: a newer save has taken its place"},
    {"POOL_TOO_SMALL", "raise pool.bytes"},
    {"POOL_EXHAUSTED", "save later, or raise pool.bytes"},
    {"OVER_SHARE", "seal sooner, save less, or raise pool.bytes"},
    {"NO_SPACE", "free room on the root's disk, or keep fewer checkpoints: ckptctl retention"},
    {"FENCED", "nothing, if the job was restarted; else end the second launch of the job"},
    {"SAVE_ABORTED", "nothing: a rank or an operator has ended it, and the next save is independent"},
    {"IO_ERROR", "look at the kernel's log, and replace the disk; older checkpoints are intact"},
    {"NODE_LOST", "look at the node that is named: ckptctl status --verbose"},
    {"NODE_DRAINED", "nothing, if that node has been restarted; else ckptctl drain --undo there"},
    {"INDETERMINATE",
     "wait for the scan of the root; of several nodes, look in the root, then ckptctl resolve"},
}};

std::string NextStep(const std::string& reason) {
  for (const Step& step : kSteps) {
    if (step.reason == reason) return std::string(step.what);
  }
  return absl::StrCat("the table of errors in docs/protocol.md says what to do about ", reason);
}

std::string When(const google::protobuf::Timestamp& time, int64_t now_us) {
  const int64_t then_us = UnixMicros(time);
  return absl::StrCat(LocalTime(then_us), " (", HumanSeconds(static_cast<double>(now_us - then_us) / 1e6),
                      " ago)");
}

// "COMMITTED at 2026-01-31 12:03:10 (4 min 2 s ago), sequence 12 of attempt 3, 5.6 GiB".
std::string Event(const v1::HistoryEntry& entry, int64_t now_us) {
  const bool is_save = entry.kind() == v1::HistoryEntry::SAVE;
  std::string text = absl::StrCat(is_save ? "save" : v1::HistoryEntry::Kind_Name(entry.kind()), " at ",
                                  When(entry.time(), now_us), ": ", RenderEnd(entry));
  if (entry.sequence() > 0) absl::StrAppend(&text, ", sequence ", entry.sequence());
  if (entry.attempt() > 0) absl::StrAppend(&text, " of attempt ", entry.attempt());
  if (entry.size_bytes() > 0) absl::StrAppend(&text, ", ", HumanBytes(entry.size_bytes()));
  if (is_save && entry.level() == v1::COMMITTED && entry.committed_seconds() > 0) {
    absl::StrAppend(&text, ", stall ", HumanSeconds(entry.stall_seconds()), ", durable after ",
                    HumanSeconds(entry.committed_seconds()));
  }
  if (is_save && entry.has_slowest_rank()) absl::StrAppend(&text, ", slowest rank ", entry.slowest_rank());
  return text;
}

// The answer has the message of the failure that it is about already.
void AddHistory(const TagFacts& facts, WhyAnswer* answer, const std::string& told = "") {
  constexpr int kMostEvents = 5;
  const int shown = std::min(facts.history.entries_size(), kMostEvents);
  for (int i = 0; i < shown; ++i) {
    v1::HistoryEntry entry = facts.history.entries(i);
    if (entry.message() == told) entry.clear_message();
    answer->evidence.push_back(Event(entry, facts.now_us));
  }
  if (const int more = facts.history.entries_size() - shown; more > 0)
    answer->evidence.push_back(absl::StrCat(more, " earlier events: ckptctl history"));
}

// Why a committed checkpoint is, or is not, the one from which a job resumes.
std::string LatestText(const TagFacts& facts, const v1::Checkpoint& checkpoint) {
  if (!facts.run.has_latest()) return "no checkpoint of the run can be resumed from";
  const v1::Checkpoint& latest = facts.run.latest();
  if (latest.sequence() == checkpoint.sequence()) return "it is the latest: a job resumes from it";
  std::string text =
      absl::StrCat("it is not the latest, which is ", latest.tag(), " (sequence ", latest.sequence(), ")");
  if (checkpoint.has_damage()) return text + ": it is damaged";
  if (!checkpoint.suspect().empty()) return text + ": it is suspect";
  absl::StrAppend(&text, ": that one was begun later");
  if (checkpoint.has_step() && latest.has_step() && checkpoint.step() > latest.step())
    absl::StrAppend(&text, ", although its step ", latest.step(), " is lower; the order is by sequence");
  return text;
}

std::string KeptText(const TagFacts& facts) {
  if (!facts.decision) return "";
  if (facts.decision->kept_by().empty()) return "nothing keeps it: the next commit evicts it";
  return absl::StrCat("retention keeps it: ", absl::StrJoin(facts.decision->kept_by(), ", "));
}

WhyAnswer Committed(const TagFacts& facts, const v1::Checkpoint& checkpoint) {
  WhyAnswer answer;
  answer.state = LevelOf(checkpoint);
  answer.good = true;
  answer.answer = absl::StrCat("it is committed; ", LatestText(facts, checkpoint));
  answer.evidence.push_back(absl::StrCat(
      "committed ", When(checkpoint.commit_time(), facts.now_us), ", sequence ", checkpoint.sequence(), ", ",
      HumanBytes(checkpoint.size_bytes()), " in ", Plural(checkpoint.file_count(), "file")));
  if (const std::string kept = KeptText(facts); !kept.empty()) {
    answer.evidence.push_back(kept);
    if (facts.decision->kept_by().empty())
      answer.next_step = absl::StrCat("to keep it: ckptctl pin ", checkpoint.directory());
  }
  if (const std::string upload = UploadText(checkpoint, facts.now_us); !upload.empty()) {
    answer.evidence.push_back(absl::StrCat(upload, " (", checkpoint.upload().url(), ")"));
    answer.next_step = absl::StrCat("ckptctl watch ", facts.run.path(), " shows the rate and the time left");
  } else if (checkpoint.upload().state() == v1::CheckpointUpload::DONE) {
    answer.evidence.push_back(absl::StrCat("it is in the bucket, too: ", checkpoint.upload().url()));
  }
  if (!checkpoint.suspect().empty()) {
    answer.evidence.push_back(absl::StrCat("its trainer marked it as suspect: ", checkpoint.suspect()));
    answer.next_step = "resume from it only on request: run.resume(allow_suspect=True)";
  }
  if (checkpoint.has_damage()) {
    answer.state = "DAMAGED";
    answer.good = false;
    answer.evidence.push_back(absl::StrCat("found ", When(checkpoint.damage().time(), facts.now_us), ": ",
                                           checkpoint.damage().message()));
    answer.next_step =
        absl::StrCat("ckptctl verify ", checkpoint.directory(),
                     " shows what is damaged; after a repair: ckptctl repaired ", checkpoint.directory());
  }
  AddHistory(facts, &answer);
  return answer;
}

WhyAnswer InFlight(const TagFacts& facts, const v1::Checkpoint& save) {
  WhyAnswer answer;
  answer.state = "IN FLIGHT";
  answer.good = true;
  const std::string written =
      absl::StrCat(HumanBytes(save.written_bytes()), " of ", HumanBytes(save.size_bytes()), " are on disk");
  if (save.missing_ranks().empty()) {
    answer.answer = absl::StrCat("all ranks have sealed their parts, and the daemon writes: ", written);
    answer.next_step = absl::StrCat("ckptctl watch ", facts.run.path());
  } else {
    answer.answer = absl::StrCat("it waits for ranks ", absl::StrJoin(save.missing_ranks(), ","),
                                 ", which have not sealed their parts; ", written);
    answer.next_step = "look at the log and the stack of these ranks";
  }
  answer.evidence.push_back(absl::StrCat("begun ", When(save.create_time(), facts.now_us), ", level ",
                                         v1::Level_Name(save.level()), ", sequence ", save.sequence(),
                                         " of attempt ", save.attempt()));
  AddHistory(facts, &answer);
  return answer;
}

WhyAnswer Failed(const TagFacts& facts, v1::Level level, const std::string& reason,
                 const std::string& message) {
  WhyAnswer answer;
  answer.state = v1::Level_Name(level);
  answer.answer =
      absl::StrCat("its save ended ", answer.state, ": ", reason, message.empty() ? "" : ": ", message);
  answer.next_step = NextStep(reason);
  if (facts.run.has_latest())
    answer.evidence.push_back(absl::StrCat("the latest checkpoint of the run is ", facts.run.latest().tag(),
                                           ", committed ",
                                           When(facts.run.latest().commit_time(), facts.now_us)));
  AddHistory(facts, &answer, message);
  return answer;
}

std::string WayBack(const TagFacts& facts) {
  if (!facts.trashed) return "";
  const int64_t left_us = UnixMicros(facts.trashed->purge_time()) - facts.now_us;
  return absl::StrCat("ckptctl undelete ", facts.run.path(), "/", facts.tag, " brings it back, ",
                      left_us <= 0
                          ? "if it is not deleted meanwhile"
                          : absl::StrCat("for another ", HumanSeconds(static_cast<double>(left_us) / 1e6)));
}

WhyAnswer Gone(const TagFacts& facts, const v1::HistoryEntry& last) {
  WhyAnswer answer;
  switch (last.kind()) {
    case v1::HistoryEntry::EVICTED:
      answer.state = "EVICTED";
      answer.answer = absl::StrCat("retention evicted it ", When(last.time(), facts.now_us),
                                   ": no rule of the run's policy kept it any longer");
      break;
    case v1::HistoryEntry::DELETED:
      answer.state = "DELETED";
      answer.answer = absl::StrCat("uid ", last.uid(), " deleted it ", When(last.time(), facts.now_us));
      break;
    default:
      answer.state = "GONE";
      answer.answer =
          "it was committed, and is not in the root any more; no daemon of this node has removed it: another "
          "node has, or a program that is not ckptd";
      break;
  }
  answer.next_step = WayBack(facts);
  if (answer.next_step.empty()) {
    answer.next_step = last.kind() == v1::HistoryEntry::EVICTED
                           ? "to keep others: ckptctl pin, or ckptctl retention --set"
                           : "it cannot be brought back from the trash";
    if (answer.state == "GONE")
      answer.next_step += "; of a shared root, ckptctl why on the other nodes says which one has removed it";
  }
  AddHistory(facts, &answer);
  return answer;
}

WhyAnswer Unknown(const TagFacts& facts) {
  WhyAnswer answer;
  answer.known = false;
  answer.state = "UNKNOWN";
  answer.answer = "neither the root nor the history has a checkpoint or a save of this name";
  answer.evidence.push_back(
      facts.history.has_begin_time()
          ? absl::StrCat("the history begins ", When(facts.history.begin_time(), facts.now_us))
          : "the history of this root is empty");
  if (facts.trashed) answer.evidence.push_back("the trash has a checkpoint of this name");
  answer.next_step =
      facts.trashed
          ? WayBack(facts)
          : absl::StrCat("ckptctl history ", facts.run.path(),
                         " has the tags; of a shared root each node has the saves of its own ranks");
  return answer;
}

}  // namespace

WhyAnswer AnswerWhy(const TagFacts& facts) {
  if (facts.checkpoint) {
    const v1::Checkpoint& checkpoint = *facts.checkpoint;
    if (checkpoint.level() == v1::COMMITTED) return Committed(facts, checkpoint);
    if (checkpoint.level() < v1::COMMITTED) return InFlight(facts, checkpoint);
  }
  // What happened last. A restore of a checkpoint that is gone says nothing about its end.
  for (const v1::HistoryEntry& entry : facts.history.entries()) {
    if (entry.kind() == v1::HistoryEntry::RESTORE) continue;
    if (entry.kind() == v1::HistoryEntry::SAVE && entry.level() != v1::COMMITTED)
      return Failed(facts, entry.level(), entry.reason(), entry.message());
    return Gone(facts, entry);
  }
  if (facts.checkpoint) {  // The root's own record remembers it.
    const v1::Checkpoint& failed = *facts.checkpoint;
    return Failed(facts, failed.level(), failed.error().reason(), failed.error().message());
  }
  return Unknown(facts);
}

std::string RenderWhy(const TagFacts& facts, const WhyAnswer& answer) {
  std::string text = absl::StrCat(Printable(facts.tag), " of ", Printable(facts.run.path()), ": ",
                                  answer.state, "\n  ", OneLine(answer.answer), "\n");
  for (const std::string& line : answer.evidence) absl::StrAppend(&text, "  - ", OneLine(line), "\n");
  if (!answer.next_step.empty()) absl::StrAppend(&text, "  -> ", OneLine(answer.next_step), "\n");
  return text;
}

}  // namespace ckptd::ctl
