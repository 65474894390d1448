#include "storage/commit/shared/trials/trials.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kOldBytes[] = "old";
constexpr char kNewBytes[] = "new, and more than before";
constexpr size_t kPageBytes = 4096;
constexpr char kLastPage = 'Z';

std::string Word(const absl::Status& status) {
  if (status.ok()) return "ok";
  return ReasonOf(status).empty() ? std::string(status.message()) : ReasonOf(status);
}

template <typename... Fields>
std::string Record(const Fields&... fields) {
  return absl::StrJoin(std::vector<std::string>{absl::StrCat(fields)...}, "\t");
}

// One node's part in the trials.
class Trials {
 public:
  Trials(NodeFiles* files, Meeting* meeting, Clock* clock, const TrialSettings& settings)
      : files_(*files), meeting_(*meeting), clock_(*clock), settings_(settings) {}

  absl::StatusOr<Records> Run(const NodeFacts& facts) {
    const absl::StatusOr<uint64_t> inode = files_.Inode("");
    Note("inode", meeting_.self(), inode.ok() ? absl::StrCat(*inode) : Word(inode.status()));
    NoteFacts(facts);
    CKPTD_RETURN_IF_ERROR(TryRenames());
    std::vector<std::string> writers = meeting_.nodes();
    if (settings_.writers > 0)
      writers.resize(std::min(writers.size(), static_cast<size_t>(settings_.writers)));
    for (const std::string& writer : writers) {
      const bool writes = writer == meeting_.self();
      for (int round = 0; round < settings_.rounds; ++round) {
        const std::string name = absl::StrCat(writer, ".", round);
        CKPTD_RETURN_IF_ERROR(writes ? MakeChanges(name) : Watch(writer, name));
      }
      if (writes) NoteDelays();
      CKPTD_RETURN_IF_ERROR(writes ? Replace(writer) : ReadReplaced(writer));
    }
    for (int race = 0; race < settings_.races; ++race) CKPTD_RETURN_IF_ERROR(Race(race));
    CKPTD_ASSIGN_OR_RETURN(const auto others, meeting_.Exchange("records", absl::StrJoin(records_, "\n")));
    for (const auto& [node, text] : others) {
      for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n')))
        records_.push_back(line);
    }
    return records_;
  }

 private:
  struct Change {
    int64_t begun_us, done_us;
  };
  struct Seen {
    std::string kind;
    int64_t done_us, seen_us;  // By the clock of the writer, and of the reader; seen 0: not in time.
  };
  struct Reader {
    std::vector<Seen> seen;
    std::optional<int64_t> least_there,
        least_back;  // The shortest ways to that node and back, with the clocks' offset.
  };

  template <typename... Fields>
  void Note(const Fields&... fields) {
    records_.push_back(Record(fields...));
  }

  void NoteFacts(const NodeFacts& facts) {
    if (const auto& mounted = facts.mounted)
      Note("mount", meeting_.self(), mounted->type, mounted->source, mounted->caching,
           mounted->is_local ? 1 : 0);
    if (!facts.daemon) return Note("no daemon", meeting_.self(), facts.no_daemon);
    Note("daemon", meeting_.self(), facts.daemon->shares ? 1 : 0,
         facts.daemon->visibility / std::chrono::milliseconds(1));
  }

  // Whether it was so before the time of a measurement was over. Looks as the daemons do, which ask for names anew.
  bool Look(const std::function<bool()>& is_so) {
    return meeting_.Await(clock_, settings_.look, [&] {
      files_.AskForNames(meeting_.Directory());
      return is_so();
    });
  }

  // On this node alone.
  absl::Status TryRenames() {
    const std::string base = meeting_.Path(meeting_.self());
    for (const char* directory : {".a", ".empty", ".full"})
      CKPTD_RETURN_IF_ERROR(files_.MakeDir(absl::StrCat(base, directory)));
    CKPTD_RETURN_IF_ERROR(files_.Write(absl::StrCat(base, ".full/file"), kOldBytes));
    const int refused = ErrnoOf(files_.Rename(absl::StrCat(base, ".a"), absl::StrCat(base, ".full")));
    const bool keeps = refused == ENOTEMPTY || refused == EEXIST;
    Note("rename onto full", meeting_.self(), keeps ? "ok" : "it replaced the other one");
    if (keeps)
      Note("rename onto empty", meeting_.self(),
           Word(files_.Rename(absl::StrCat(base, ".a"), absl::StrCat(base, ".empty"))));
    return absl::OkStatus();
  }

  // ---- after how long another node sees a change

  absl::Status MakeChanges(const std::string& name) {
    const std::string path = meeting_.Path(name);
    CKPTD_RETURN_IF_ERROR(files_.Write(path + ".old", kOldBytes));
    CKPTD_RETURN_IF_ERROR(files_.Write(path + ".hidden", kOldBytes));
    CKPTD_RETURN_IF_ERROR(files_.MakeDir(path + ".dir"));
    CKPTD_RETURN_IF_ERROR(files_.Write(path + ".dir/file", kOldBytes));
    CKPTD_RETURN_IF_ERROR(files_.MakeDir(path + ".tag"));
    CKPTD_RETURN_IF_ERROR(meeting_.Say(absl::StrCat("ready.", name)));
    CKPTD_RETURN_IF_ERROR(meeting_.HearAll(absl::StrCat("primed.", name)).status());
    std::map<std::string, Change> changes;
    int64_t begun_us = clock_.UnixMicros();
    CKPTD_RETURN_IF_ERROR(files_.Rename(path + ".hidden", path + ".name"));
    changes["names"] = {begun_us, clock_.UnixMicros()};
    begun_us = clock_.UnixMicros();
    CKPTD_RETURN_IF_ERROR(files_.Rename(path + ".dir", path + ".tag"));
    changes["renamed directories"] = {begun_us, clock_.UnixMicros()};
    begun_us = clock_.UnixMicros();
    CKPTD_RETURN_IF_ERROR(files_.Overwrite(path + ".old", kNewBytes));
    changes["sizes"] = changes["bytes"] = {begun_us, clock_.UnixMicros()};
    for (const std::string& node : meeting_.nodes()) {
      if (node == meeting_.self()) continue;
      CKPTD_ASSIGN_OR_RETURN(const std::string saw, meeting_.Hear(node, absl::StrCat("saw.", name)));
      CKPTD_RETURN_IF_ERROR(Take(node, saw, clock_.UnixMicros(), changes));
    }
    return absl::OkStatus();
  }

  // What a reader has told: when it said that, whether its handle has survived, and when it saw what.
  absl::Status Take(const std::string& node, const std::string& saw, int64_t heard_us,
                    const std::map<std::string, Change>& changes) {
    const std::vector<std::string> fields = absl::StrSplit(saw, '\t');
    int64_t said_us = 0;
    if (fields.size() != 2 + changes.size() || !absl::SimpleAtoi(fields[0], &said_us))
      return MakeError(absl::StatusCode::kInternal, "NODES_DIFFER",
                       absl::StrCat("node ", node, " runs another version of ckptd: it says ", saw));
    Note("handle", meeting_.self(), node, fields[1]);
    Reader& reader = readers_[node];
    const int64_t back = heard_us - said_us;
    if (!reader.least_back || back < *reader.least_back) reader.least_back = back;
    size_t field = 2;
    for (const auto& [kind, change] : changes) {
      int64_t seen_us = 0;
      if (!absl::SimpleAtoi(fields[field++], &seen_us)) seen_us = 0;
      reader.seen.push_back({kind, change.done_us, seen_us});
      // It was not seen before it began.
      const int64_t there = seen_us - change.begun_us;
      if (seen_us != 0 && (!reader.least_there || there < *reader.least_there)) reader.least_there = there;
    }
    return absl::OkStatus();
  }

  // What cannot have been negative bounds how far the clocks are apart, from both sides.
  void NoteDelays() {
    for (const auto& [node, reader] : readers_) {
      const int64_t there = reader.least_there.value_or(0), back = reader.least_back.value_or(0);
      const int64_t offset = (there - back) / 2;
      Note("clock", meeting_.self(), node, offset, std::max<int64_t>(0, (there + back) / 2));
      for (const Seen& seen : reader.seen) {
        const int64_t delay =
            seen.seen_us == 0 ? -1 : std::max<int64_t>(0, seen.seen_us - seen.done_us - offset);
        Note("delay", seen.kind, meeting_.self(), node, delay);
      }
    }
  }

  // Looks before the change, so that this node has cached what is old.
  absl::Status Watch(const std::string& writer, const std::string& name) {
    const std::string path = meeting_.Path(name);
    CKPTD_RETURN_IF_ERROR(meeting_.Hear(writer, absl::StrCat("ready.", name)).status());
    const auto made = [&] { return files_.Read(path + ".dir/file").ok() && files_.Read(path + ".old").ok(); };
    if (!Look(made))
      return MakeError(absl::StatusCode::kDeadlineExceeded, "NODES_MISSING",
                       absl::StrCat("files that node ", writer, " has made and synced are not there after ",
                                    settings_.look / std::chrono::seconds(1), " s"));
    (void)files_.Size(path + ".name");
    (void)files_.Size(path + ".tag/file");
    (void)files_.Size(path + ".old");
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle held, files_.OpenDir(path + ".dir"));
    CKPTD_RETURN_IF_ERROR(files_.ReadIn(held, "file").status());
    CKPTD_RETURN_IF_ERROR(meeting_.Say(absl::StrCat("primed.", name)));

    const int64_t new_size = std::strlen(kNewBytes);
    std::map<std::string, std::pair<int64_t, std::function<bool()>>> looks;
    looks["names"] = {0, [&] { return files_.Size(path + ".name").ok(); }};
    looks["sizes"] = {0, [&] { return files_.Size(path + ".old").value_or(-1) == new_size; }};
    looks["bytes"] = {0, [&] { return files_.Read(path + ".old").value_or("") == kNewBytes; }};
    looks["renamed directories"] = {0, [&] { return files_.Size(path + ".tag/file").ok(); }};
    Look([&] {
      bool all = true;
      for (auto& [kind, look] : looks) {
        if (look.first == 0 && look.second()) look.first = clock_.UnixMicros();
        all = all && look.first != 0;
      }
      return all;
    });
    const absl::StatusOr<std::string> through = files_.ReadIn(held, "file");
    const std::string handle = !through.ok()           ? Word(through.status())
                               : *through == kOldBytes ? "ok"
                                                       : "other bytes";
    std::string saw = Record(clock_.UnixMicros(), handle);
    for (const auto& [kind, look] : looks) absl::StrAppend(&saw, "\t", look.first);
    return meeting_.Say(absl::StrCat("saw.", name), saw);
  }

  // ---- a file that is replaced while others read it

  absl::Status Replace(const std::string& writer) {
    const std::string path = meeting_.Path(absl::StrCat(writer, ".page"));
    CKPTD_RETURN_IF_ERROR(files_.Write(path, std::string(kPageBytes, 'A')));
    CKPTD_RETURN_IF_ERROR(meeting_.Say(absl::StrCat("page.", writer)));
    CKPTD_RETURN_IF_ERROR(meeting_.HearAll(absl::StrCat("reads.", writer)).status());
    for (int i = 1; i <= settings_.replacements; ++i) {
      const char page = i == settings_.replacements ? kLastPage : static_cast<char>('A' + i % 20);
      CKPTD_RETURN_IF_ERROR(files_.Write(path + ".next", std::string(kPageBytes, page)));
      CKPTD_RETURN_IF_ERROR(files_.Rename(path + ".next", path));
    }
    return meeting_.HearAll(absl::StrCat("has-read.", writer)).status();
  }

  absl::Status ReadReplaced(const std::string& writer) {
    const std::string path = meeting_.Path(absl::StrCat(writer, ".page"));
    CKPTD_RETURN_IF_ERROR(meeting_.Hear(writer, absl::StrCat("page.", writer)).status());
    Look([&] { return files_.Read(path).ok(); });
    CKPTD_RETURN_IF_ERROR(meeting_.Say(absl::StrCat("reads.", writer)));
    int64_t reads = 0, missing = 0, stale = 0, torn = 0;
    Look([&] {
      const absl::StatusOr<std::string> page = files_.Read(path);
      ++reads;
      if (!page.ok()) {
        ++(ErrnoOf(page.status()) == ESTALE ? stale : missing);
        return false;
      }
      const bool whole =
          page->size() == kPageBytes && page->find_first_not_of(page->front()) == std::string::npos;
      if (!whole) ++torn;
      return whole && page->front() == kLastPage;
    });
    Note("replaced", writer, meeting_.self(), reads, missing, stale, torn);
    return meeting_.Say(absl::StrCat("has-read.", writer));
  }

  // ---- all nodes at once

  absl::Status Race(int race) {
    const std::string path = meeting_.Path(absl::StrCat("race.", race));
    if (meeting_.IsFirst()) {
      // Not made under this name: others look for it already, and GlusterFS then sometimes answers EEXIST.
      const std::string made = absl::StrCat(path, ".", meeting_.self(), ".new");
      CKPTD_RETURN_IF_ERROR(files_.Write(made, kOldBytes));
      CKPTD_RETURN_IF_ERROR(files_.Rename(made, path));
    }
    Look([&] { return files_.Size(path).ok(); });
    CKPTD_RETURN_IF_ERROR(meeting_.Exchange(absl::StrCat("at-race.", race)).status());
    const absl::Status renamed = files_.Rename(path, absl::StrCat(path, ".", meeting_.self()));
    Note("race", race, meeting_.self(), Word(renamed));
    return meeting_.Exchange(absl::StrCat("after-race.", race)).status();
  }

  NodeFiles& files_;
  Meeting& meeting_;
  Clock& clock_;
  const TrialSettings& settings_;
  Records records_;
  std::map<std::string, Reader> readers_;
};

}  // namespace

absl::StatusOr<Records> RunTrials(NodeFiles* files, Meeting* meeting, Clock* clock,
                                  const TrialSettings& settings, const NodeFacts& facts) {
  return Trials(files, meeting, clock, settings).Run(facts);
}

}  // namespace ckptd
