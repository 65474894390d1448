#include "client/ckptctl/debug/redact.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace ckptd::ctl {
namespace {

constexpr size_t kLeastSecret = 4;
constexpr std::array kSecretWords = {"password", "passwd",     "secret",     "token",     "authorization",
                                     "apikey",   "credential", "signature",  "accesskey", "privatekey",
                                     "cookie",   "passphrase", "sessionkey", "keyid"};
constexpr std::array kPlaces = {"file", "uri", "path", "dir", "directory"};
constexpr char kKeyBegin[] = "-----BEGIN ";
constexpr char kKeyEnd[] = "-----END ";

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

// Where a value ends that begins at `begin`: at its quote, or at what separates values.
size_t EndOfValue(absl::string_view text, size_t begin) {
  if (begin < text.size() && (text[begin] == '"' || text[begin] == '\'')) {
    for (size_t i = begin + 1; i < text.size() && text[i] != '\n'; ++i) {
      if (text[i] == text[begin]) return i + 1;
      if (text[i] == '\\') ++i;
    }
  }
  return std::min(text.find_first_of(" \t\r\n,;&<>\"'{}", begin), text.size());
}

size_t SkipBlanks(absl::string_view text, size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
  return at;
}

bool IsScheme(absl::string_view word) {
  return absl::EqualsIgnoreCase(word, "bearer") || absl::EqualsIgnoreCase(word, "basic");
}

// Appends what follows the name that ends at `at`, if that is a secret. Returns where the text goes on.
size_t CleanValue(absl::string_view text, absl::string_view name, size_t at, std::string* out) {
  size_t value = SkipBlanks(text, at);
  if (IsScheme(name)) {
    if (value == at || EndOfValue(text, value) == value) return at;
  } else {
    if (!NamesSecret(name)) return at;
    if (value < text.size() && text[value] == '"') ++value;  // Of the name: "token": "..."
    if (value >= text.size() || (text[value] != '=' && text[value] != ':')) return at;
    value = SkipBlanks(text, value + 1);
    // "Authorization: Bearer ..." is two words.
    const size_t word = EndOfValue(text, value);
    if (IsScheme(text.substr(value, word - value))) value = SkipBlanks(text, word);
  }
  const size_t end = EndOfValue(text, value);
  if (end == value) return at;
  absl::StrAppend(out, text.substr(at, value - at), kLeftOut);
  return end;
}

std::string CleanNamedValues(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (!IsNameCharacter(text[i])) {
      out += text[i++];
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && IsNameCharacter(text[i])) ++i;
    const absl::string_view name = text.substr(begin, i - begin);
    absl::StrAppend(&out, name);
    i = CleanValue(text, name, i, &out);
  }
  return out;
}

// "https://user:password@host" and "https://token@host".
std::string CleanUrls(absl::string_view text) {
  std::string out;
  size_t done = 0;
  for (size_t found; (found = text.find("://", done)) != text.npos;) {
    const size_t begin = found + 3;
    const size_t end = std::min(text.find_first_of(" \t\r\n/?#,;\"'<>()[]{}", begin), text.size());
    const size_t at = text.substr(begin, end - begin).rfind('@');
    absl::StrAppend(&out, text.substr(done, begin - done));
    done = begin;
    if (at == text.npos) continue;
    absl::StrAppend(&out, kLeftOut);
    done = begin + at;
  }
  return absl::StrCat(out, text.substr(done));
}

std::string CleanPrivateKeys(absl::string_view text) {
  std::string out;
  size_t done = 0;
  for (size_t begin = 0; (begin = text.find(kKeyBegin, begin)) != text.npos;) {
    const size_t line = std::min(text.find('\n', begin), text.size());
    if (!absl::StrContains(text.substr(begin, line - begin), "PRIVATE KEY")) {
      begin = line;
      continue;
    }
    absl::StrAppend(&out, text.substr(done, begin - done), "(a private key is left out)");
    const size_t end = text.find(kKeyEnd, begin);
    done = begin = end == text.npos ? text.size() : std::min(text.find('\n', end), text.size());
  }
  return absl::StrCat(out, text.substr(done));
}

}  // namespace

bool NamesSecret(absl::string_view name) {
  std::string plain;  // In small letters, without what separates words: accessKey, access_key, ACCESS-KEY.
  for (const char c : name) {
    if (c != '_' && c != '-') plain += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  for (const char* place : kPlaces) {
    if (absl::EndsWith(plain, place)) return false;
  }
  if (plain == "pass" || plain == "auth") return true;
  return std::any_of(kSecretWords.begin(), kSecretWords.end(),
                     [&](const char* word) { return absl::StrContains(plain, word); });
}

void Redactor::Add(absl::string_view secret) {
  const std::string plain(absl::StripAsciiWhitespace(secret));
  if (plain.size() < kLeastSecret) return;
  const auto at = std::find_if(secrets_.begin(), secrets_.end(),
                               [&](const std::string& other) { return other.size() <= plain.size(); });
  secrets_.insert(at, plain);
}

void Redactor::AddEnvironment(const std::vector<std::string>& variables) {
  for (const std::string& variable : variables) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(variable, absl::MaxSplits('=', 1));
    if (NamesSecret(parts.first)) Add(parts.second);
  }
}

void Redactor::AddSettings(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t equals = line.find('=');
    if (equals == line.npos) continue;
    if (NamesSecret(absl::StripAsciiWhitespace(line.substr(0, equals)))) Add(line.substr(equals + 1));
  }
}

std::string Redactor::Clean(absl::string_view text) const {
  std::string plain = CleanPrivateKeys(text);
  for (const std::string& secret : secrets_) plain = absl::StrReplaceAll(plain, {{secret, kLeftOut}});
  return CleanNamedValues(CleanUrls(plain));
}

}  // namespace ckptd::ctl
